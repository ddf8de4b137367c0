//! A headless Chromium that a test steers, by its DevTools protocol over pipes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The deadline of every wait.
const LONG: Duration = super::common::DEADLINE;

/// One page in a browser. Dropping it ends the browser.
pub(crate) struct Page {
    browser: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
}

impl Page {
    /// Opens `url` in a browser that keeps its files in `profile`.
    pub(crate) fn open(url: &str, profile: &Path, (width, height): (u32, u32)) -> Self {
        let chromium = format!(
            "exec timeout 900 chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
             --disable-component-update --disable-sync --remote-debugging-pipe --window-size={width},{height} \
             --user-data-dir='{}' '{url}' 3<&0 4>&1 2>/dev/null",
            profile.display()
        );
        // The protocol's pipes are the descriptors 3 and 4.
        let mut browser = Command::new("bash")
            .args(["-c", &chromium])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is there");
        let requests = browser.stdin.take().unwrap();
        let replies = BufReader::new(browser.stdout.take().unwrap());
        let mut page = Self { browser, requests, replies, session: None, sent: 0 };
        let target = page.first_page();
        let attached = page.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        page
    }

    /// The page that the browser opens by itself: it is in front, so that it is drawn.
    fn first_page(&mut self) -> Value {
        let begun = Instant::now();
        loop {
            let targets = self.call("Target.getTargets", json!({}))["targetInfos"].take();
            if let Some(page) = targets.as_array().unwrap().iter().find(|target| target["type"] == "page") {
                return page["targetId"].clone();
            }
            assert!(begun.elapsed() < LONG, "the browser has no page: {targets}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut request = json!({ "id": self.sent, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).expect("Chromium is there: make setup-chromium");
        loop {
            let mut reply = Vec::new();
            self.replies.read_until(0, &mut reply).unwrap();
            assert_eq!(reply.pop(), Some(0), "Chromium has ended: make setup-chromium");
            let mut reply: Value = serde_json::from_slice(&reply).unwrap();
            // All else are events.
            if reply["id"] == self.sent {
                // The page loads itself again: there is no answer, and the next question gets one.
                let navigated = reply["error"]["message"] == "Inspected target navigated or closed";
                assert!(reply["error"].is_null() || navigated, "{method}: {reply}");
                return reply["result"].take();
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        // Null while the page loads itself again.
        self.call("Runtime.evaluate", params)["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression) != true {
            let text = self.value("document.body.innerText");
            assert!(begun.elapsed() < LONG, "{expression} is still not true: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Gives the page this many pixels, even below the least width of a window.
    pub(crate) fn size(&mut self, (width, height): (u32, u32)) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// The whole page as a PNG, from its top to its end, without scroll bars.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let params = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", params)["data"].take();
        BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// What a screen reader is told: the role and the name of each node, in order, without those that it ignores.
    pub(crate) fn accessibility_tree(&mut self) -> Vec<(String, String)> {
        let nodes = self.call("Accessibility.getFullAXTree", json!({}))["nodes"].take();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let told = nodes.as_array().unwrap().iter().filter(|node| node["ignored"] == false);
        told.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    /// Presses the tab key.
    pub(crate) fn tab(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": "Tab", "windowsVirtualKeyCode": 9 }));
        }
    }

    /// Shows the page in the colours of a theme.
    pub(crate) fn theme(&mut self, name: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": name }] });
        self.call("Emulation.setEmulatedMedia", features);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
