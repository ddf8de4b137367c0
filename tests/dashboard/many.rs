//! The page of a run of 64 readers and 16 shards: it fits a phone and a laptop, and can be used by keyboard and screen reader.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::browser::Page;
use super::{common, rows};

const READERS: usize = 64;
const SHARDS: usize = 16;
const WIDTHS: [u32; 2] = [420, 1280];

/// The page of a real run whose report was changed to a report of many processes.
struct Stand {
    dir: tempfile::TempDir,
    page: PathBuf,
}

impl Stand {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (report, page) = (dir.path().join("report"), dir.path().join("many.html"));
        let rows = rows(dir.path()).display().to_string();
        let data = [format!("data.train={rows}"), format!("data.eval={rows}")];
        let run = || -> Value {
            let (code, text) = common::run(&[
                "train",
                "--report",
                report.to_str().unwrap(),
                "--set",
                &data[0],
                "--set",
                &data[1],
                "--set",
                "model.kind=lr",
                "--set",
                "data.shuffle_rows=0",
                "--set",
                "train.batch_rows=256",
                "--set",
                "data.epochs=30",
                "--set",
                "evaluation.every={ rows = 100000 }",
            ]);
            assert_eq!(code, Some(0), "{text}");
            common::read_json(report.join("report.json"))
        };
        // A run whose main thread had no core until its end has one sample, and no charts: then the test tries again.
        let has_charts = |report: &Value| report["history"]["seconds"].as_array().is_some_and(|all| all.len() > 1);
        let json = std::iter::repeat_with(run).take(20).find(has_charts).expect("a run has two samples");
        let html = std::fs::read_to_string(report.join("report.html")).unwrap();
        let many = of_many(json).to_string().replace('<', "\\u003c");
        let (before, after) = html.split_once("<script type=\"application/json\" id=\"run\">").unwrap();
        let (_, after) = after.split_once("</script>").unwrap();
        std::fs::write(&page, format!("{before}<script type=\"application/json\" id=\"run\">{many}</script>{after}"))
            .unwrap();
        Self { dir, page }
    }

    fn open(&self, width: u32) -> Page {
        let profile = self.dir.path().join(format!("profile-{width}"));
        let mut page = Page::open(&format!("file://{}", self.page.display()), &profile, (width, 900));
        page.size((width, 900));
        page.until("document.body.dataset.drawn === '1'");
        page
    }
}

/// The report of one process as a report of many: each reader with the stages that it would have.
fn of_many(mut report: Value) -> Value {
    let shard = report["services"][0].clone();
    let shards = (0..SHARDS).map(|number| {
        let mut shard = shard.clone();
        shard["name"] = json!(format!("ps{number}-embedding"));
        shard["items_in"] = json!(1_234_567 + number);
        shard
    });
    let shards: Vec<Value> = shards.collect();
    let process = |name: String, stages: Value, services: Value| {
        json!({ "process": name, "stages": stages, "services": services, "wall": report["wall"], "machine": {
            "host": "h", "cores": 8, "cpu": 123.4, "peak_bytes": 1_u64 << 31 } })
    };
    let stages = report["stages"].as_array().unwrap();
    let mut processes = vec![process("trainer 0".into(), json!(stages[3..]), json!([]))];
    processes.extend((0..READERS).map(|rank| process(format!("reader {rank}"), json!(stages[..3]), json!([]))));
    processes.extend(
        shards.iter().enumerate().map(|(rank, shard)| process(format!("ps {rank}"), json!([]), json!([shard]))),
    );
    let adjustment = |number: usize| {
        json!({ "at": number as f64, "stages": [{ "stage": "parse", "from": 1, "to": 3 }, { "stage": "batch", "from": 1, "to": 2 }],
            "why": "parse 98% busy, batch 92% busy", "rows_per_second": 1e6, "rows_per_second_after": 2.5e6,
            "rolled_back": number.is_multiple_of(2), "process": format!("reader {number}") })
    };
    let mut adjustments: Vec<Value> = (0..READERS).map(adjustment).collect();
    let read_ahead = json!({ "stage": "read", "from": 64 << 20, "to": 128 << 20, "knob": "read_ahead" });
    adjustments[READERS - 1]["stages"] = json!([read_ahead]);
    report["adjustments"] = json!(adjustments);
    report["stages"][0]["replicas"] = json!(READERS);
    (report["processes"], report["services"]) = (json!(processes), json!(shards));
    // It was resumed, and nothing limits it for sure.
    report["all_trainers"]["rows"] = json!(3_000_000);
    report["trained_before"]["rows"] = json!(2_000_000);
    report["wall"] = json!(100.0);
    report["analysis"]["limit"] = json!({ "name": "parse" });
    report["analysis"]["certainty"] = json!("unclear");
    report["job"] =
        json!("wide_deep on hdfs://namenode.cluster.example.com:8020/user/hive/warehouse/clicks.db/day=2024-01-01");
    report
}

#[test]
fn a_run_of_64_readers_and_16_shards_fits_a_phone_and_a_laptop() {
    let stand = Stand::new();
    for width in WIDTHS {
        let mut page = stand.open(width);
        let fits = format!("innerWidth === {width} && document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(page.value(&fits), true, "{width} px: {}", page.value("document.documentElement.scrollWidth"));
        let height = page.value("document.documentElement.scrollHeight").as_u64().unwrap();
        // Long tables are folded, and say what is in them.
        for (id, summary) in [
            ("process-list", "1 trainer, 64 readers, 16 ps: 10.0k CPU seconds; busiest: "),
            ("shards", "16 shards: 19.8M calls; busiest: ps"),
            ("adjustments", "64 changes of the tuner, 32 rolled back"),
        ] {
            let text = page.value(&format!("document.querySelector('#{id} > summary').textContent"));
            assert!(text.as_str().unwrap().starts_with(summary), "{text}");
            assert_eq!(page.value(&format!("document.getElementById('{id}').open")), false, "{id}");
            page.value(&format!("document.getElementById('{id}').open = true"));
        }
        assert_eq!(page.value("document.querySelectorAll('#process-table tbody tr').length"), READERS + SHARDS + 1);
        assert_eq!(page.value("document.querySelectorAll('#adjustment-table tbody tr').length"), READERS);
        let newest = page.value("document.querySelector('#adjustment-table tbody tr').textContent");
        assert!(newest.as_str().unwrap().contains("read 64 MiB → 128 MiB of read-ahead"), "{newest}");
        assert_eq!(
            page.value(&fits),
            true,
            "{width} px, unfolded: {}",
            page.value("document.documentElement.scrollWidth")
        );
        // They scroll within the page.
        let unfolded = page.value("document.documentElement.scrollHeight").as_u64().unwrap();
        assert!(unfolded < height + 3 * 450, "{width} px: {height} px high, unfolded {unfolded}");
    }
}

#[test]
fn the_page_says_no_limit_that_is_not_clear_and_no_speed_of_rows_before_the_resume() {
    let stand = Stand::new();
    let mut page = stand.open(1280);
    let figures = page.value("document.getElementById('figures').textContent").as_str().unwrap().to_owned();
    assert!(figures.contains("rows3,000,000") && figures.contains("rows per second10.0k"), "{figures}");
    let limits = "document.querySelectorAll('.stage.limit').length";
    assert_eq!(page.value(limits), 0);
    let drawn = |certainty: &str| {
        format!(
            "(() => {{ const run = JSON.parse($('run').textContent); run.analysis.certainty = '{certainty}'; graph(run); return {limits}; }})()"
        )
    };
    assert_eq!((page.value(&drawn("likely")), page.value(&drawn("unclear"))), (json!(1), json!(0)));
}

#[test]
fn a_screen_reader_is_told_the_values_of_every_chart_and_the_keyboard_reaches_every_table() {
    let stand = Stand::new();
    let mut page = stand.open(420);
    for id in ["process-list", "shards", "adjustments"] {
        page.value(&format!("document.getElementById('{id}').open = true"));
    }
    page.until("['process-table', 'shard-table', 'adjustment-table'].every((id) => document.getElementById(id).parentElement.tabIndex === 0)");
    let tree = page.accessibility_tree();
    let names =
        |role: &str| tree.iter().filter(|(each, _)| each == role).map(|(_, name)| name.as_str()).collect::<Vec<_>>();
    // Each chart has a title, and a picture with its last values in words.
    let figures = names("figure");
    for title in [
        "rows per second",
        "bytes per second from the store",
        "running logloss",
        "running AUC",
        "train, percent of its time",
    ] {
        assert!(figures.contains(&title), "{title}: {figures:?}");
    }
    let pictures = names("image");
    let told = |words: &[&str]| pictures.iter().any(|name| words.iter().all(|word| name.contains(word)));
    assert!(
        told(&["at last, between", " and "]) && told(&["at last busy ", "waiting ", "starved ", "blocked "]),
        "{pictures:?}"
    );
    assert!(told(&["predicted 0.", "observed 0."]), "the calibration: {pictures:?}");
    assert!(pictures.iter().all(|name| !name.is_empty()), "a picture without a name: {pictures:?}");
    assert_eq!(names("Canvas"), [""; 0], "a canvas is told besides its picture");
    for region in ["Shards", "Changes of the tuner", "Processes", "Evaluations", "Ledger of rows"] {
        assert!(names("region").contains(&region), "{region}: {:?}", names("region"));
    }
    let heads = names("columnheader");
    assert!(heads.contains(&"memory, at most") && heads.contains(&"change"), "{heads:?}");

    // By the tab key alone.
    page.value("document.body.focus()");
    let mut reached = Vec::new();
    for _ in 0..20 {
        page.tab();
        let at = page.value(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.parentElement?.id ?? ''",
        );
        reached.push(at.as_str().unwrap_or_default().to_owned());
    }
    for stop in ["shards", "Shards", "adjustments", "Changes of the tuner", "process-list", "Processes"] {
        assert!(reached.iter().any(|at| at == stop), "the keyboard does not reach {stop}: {reached:?}");
    }
}

#[test]
fn pictures_of_the_page_in_both_themes_and_two_widths_show_it_whole() {
    let stand = Stand::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    for width in WIDTHS {
        let mut page = stand.open(width);
        let mut pictures = Vec::new();
        for (theme, ground) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 29)")] {
            let ground_is = format!("getComputedStyle(document.body).backgroundColor === '{ground}'");
            // The page loads itself again if its colours change: until then it is not drawn in these.
            page.value(&format!("if (!({ground_is})) document.body.dataset.drawn = 'before'"));
            page.theme(theme);
            page.until(&format!("{ground_is} && document.body.dataset.drawn === '1'"));
            let picture = page.picture();
            // In its header a PNG says how wide and how high it is. The browser leaves out the scroll bar, or its place.
            let [wide, high] = [16, 20].map(|at| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap()));
            assert!((width - 20..=width).contains(&wide) && high > 2000, "{theme}: {wide} × {high} px");
            assert!(picture.len() > 50_000, "{theme}, {width} px: only {} bytes", picture.len());
            std::fs::write(folder.join(format!("{theme}-{width}.png")), &picture).unwrap();
            pictures.push(picture);
        }
        assert_ne!(pictures[0], pictures[1], "light and dark look alike");
    }
}
