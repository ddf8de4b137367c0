//! The page of a run: `report.html`, which needs no other file, and the page of `--dashboard`, which follows the run. uPlot (MIT)
//! draws the charts.

use serde_json::Value;

/// The page of a run that is over. `run` is its report as JSON.
pub(crate) fn report_page(run: &Value) -> String {
    // `</script>` in a name of the job would end the script that holds the JSON.
    page(&run.to_string().replace('<', "\\u003c"))
}

/// The page of a run that goes on: it fetches `run.json` every second.
pub(crate) fn live_page() -> String {
    page("")
}

fn page(run: &str) -> String {
    let parts = [
        ("{uplot.css}", include_str!("page/uplot/uPlot.min.css")),
        ("{uplot.js}", include_str!("page/uplot/uPlot.iife.min.js")),
        ("{page.css}", include_str!("page/page.css")),
        ("{text.js}", include_str!("page/text.js")),
        ("{graph.js}", include_str!("page/graph.js")),
        ("{charts.js}", include_str!("page/charts.js")),
        ("{tables.js}", include_str!("page/tables.js")),
        ("{page.js}", include_str!("page/page.js")),
        ("{run.json}", run),
    ];
    parts.iter().fold(include_str!("page/page.html").to_owned(), |page, (name, part)| page.replacen(name, part, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_page_needs_no_other_file_and_no_name_can_end_its_script() {
        let page = report_page(&json!({ "job": "</script><script>alert(1)</script>" }));
        assert!(!page.contains("alert(1)</script>"), "a name ended the script");
        assert!(page.contains("\\u003c/script>\\u003cscript>alert(1)"));
        for outside in ["src=", "href=", "@import", "{page.", "{uplot.", ".js}"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
