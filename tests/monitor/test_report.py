"""The report in a real browser: what it says, that it works by keyboard, on a phone, in the dark and on paper."""

import json
import shutil
import warnings

import pytest
import torch

import nupi
from nupi.monitor.columns import Columns
from nupi.monitor.record import Record
from nupi.monitor.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NASTY = "</script><b>bold & [x]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A run with a swing, a group that is too large to be shown whole, and a name that is not harmless."""
    path = tmp_path_factory.mktemp("report") / "run.html"
    torch.manual_seed(0)
    x = torch.zeros(3, requires_grad=True)
    points = torch.randn(200, 3)
    lagrangian = nupi.Lagrangian(
        {NASTY: nupi.Equality(), "points": nupi.Inequality(200), "far": nupi.Inequality()}
    )
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.3, kp=0.0)
    primal = torch.optim.SGD([x], lr=0.05)
    monitor = nupi.Monitor(lagrangian)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        for _ in range(600):
            violations = {NASTY: x[:1] - 1, "points": points @ x - 20.0, "far": x.sum().reshape(1) - 90.0}
            lagrangian.ascend(dual, violations)
            primal.zero_grad()
            lagrangian(0.01 * x.square().sum(), violations).backward()
            primal.step()
    monitor.report(path)
    return path


@pytest.fixture(scope="module")
def browser():
    if not (CHROMIUM and DRIVER):
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def opened(browser, path, width=1280, **media):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    features = [{"name": "prefers-color-scheme", "value": media.get("scheme", "light")}]
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": media.get("media", ""), "features": features}
    )
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert browser.get_log("browser") == []
    return browser.execute_script


def test_it_says_what_was_found(browser, page):
    run = opened(browser, page)
    assert run("return document.getElementById('verdict').textContent").startswith(
        "Not well after 600 steps: oscill"
    )
    first = run("return document.querySelector('.finding').textContent")
    assert NASTY in first
    assert "crosses zero every" in first
    assert run("return document.querySelectorAll('b').length") == 0  # a name is text, whatever it holds
    assert run("return document.querySelectorAll('.constraint').length") == 4
    assert run("return document.querySelector('.constraint h3').textContent") == NASTY
    # Each line has a point for every step that it was given, and a mark where the finding is.
    drawn = run(
        "return [...document.querySelectorAll('.constraint:first-child svg')].map(s => s.innerHTML.length)"
    )
    assert len(drawn) == 3
    assert min(drawn) > 2000
    assert run("return document.querySelectorAll('.constraint:first-child .mark').length") == 2
    assert "NuPI" in run("return document.getElementById('gains').textContent")
    assert str(torch.__version__) in run("return document.getElementById('info').textContent")


def test_it_asks_for_nothing_from_outside(browser, page):
    run = opened(browser, page)
    assert run("return performance.getEntriesByType('resource').length") == 0
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_a_script_error_would_be_seen(browser, tmp_path, page):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("showFindings();", "nothing();", 1))
    browser.get(broken.as_uri())
    assert any("nothing is not defined" in entry["message"] for entry in browser.get_log("browser"))


def test_the_keyboard_reads_a_plot_and_sorts_the_table(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    run = opened(browser, page)
    plot = browser.find_element(By.CSS_SELECTOR, ".constraint svg")
    output = browser.find_element(By.CSS_SELECTOR, ".constraint output")
    plot.send_keys(Keys.END)
    last = output.text
    plot.send_keys(Keys.ARROW_LEFT)
    assert last.startswith("step ")
    assert output.text != last
    button = browser.find_elements(By.CSS_SELECTOR, "th button")[2]
    button.send_keys(Keys.ENTER)
    cells = run("return [...document.querySelectorAll('tbody tr')].map(r => r.children[2].textContent)")
    values = [float(cell) for cell in cells if cell != "\u2013"]
    assert values == sorted(values, reverse=True)
    browser.find_element(By.ID, "filter").send_keys("far")
    assert run("return [...document.querySelectorAll('tbody td:first-child')].map(c => c.textContent)") == [
        "far"
    ]
    # Everything that can be used can be reached: buttons, the filter, each plot, the link past the head.
    assert run("return [...document.querySelectorAll('svg')].every(s => s.tabIndex === 0)")
    assert run(
        "return [...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label').length > 20)"
    )


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_the_screen(browser, page, width):
    run = opened(browser, page, width)
    assert run("return document.documentElement.scrollWidth") <= width


def contrast(one, other):
    """The contrast ratio of two colours, `rgb(r, g, b)`, as WCAG defines it."""

    def luminance(color):
        channels = [int(c) / 255 for c in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(browser, page, scheme):
    run = opened(browser, page, scheme=scheme)
    ground = run("return getComputedStyle(document.body).backgroundColor")
    assert (contrast(ground, "rgb(255, 255, 255)") < 2) == (scheme == "light")
    for place in ("#verdict", ".hint", ".kind", "td", "figcaption"):
        ink = run(f"return getComputedStyle(document.querySelector('{place}')).color")
        assert contrast(ink, ground) >= 4.5, place


def test_it_prints(browser, page):
    run = opened(browser, page, media="print", scheme="dark")
    assert run("return getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert (
        contrast(run("return getComputedStyle(document.querySelector('main')).color"), "rgb(255, 255, 255)")
        > 15
    )
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert len(printed["data"]) > 10_000


def test_ten_thousand_constraints(browser, tmp_path):
    columns = Columns.of({f"c{i}": nupi.Inequality() for i in range(10_000)})
    record = Record(columns, 10_000)
    rows = torch.randn(300, columns.count + 1, dtype=torch.float64)
    rows[:, 0] = torch.arange(1, 301)
    record.add(rows)
    write_report(record, tmp_path / "many.html")
    assert (tmp_path / "many.html").stat().st_size < 3_000_000
    run = opened(browser, tmp_path / "many.html")
    assert run("return document.getElementById('count').textContent") == "1 to 50 of 10,000"
    assert run("return document.querySelectorAll('tbody tr').length") == 50
    assert run("return document.querySelectorAll('*').length") < 8000


def test_a_million_steps(browser, tmp_path):
    columns = Columns.of({"a": nupi.Equality(), "b": nupi.Inequality(20)})
    record = Record(columns, 10_000)
    for start in range(0, 1_000_000, 50_000):
        rows = torch.zeros(50_000, columns.count + 1, dtype=torch.float64)
        rows[:, 0] = torch.arange(start + 1, start + 50_001)
        rows[:, 1] = torch.exp(-rows[:, 0] / 2e5)
        record.add(rows)
    write_report(record, tmp_path / "long.html")
    assert (tmp_path / "long.html").stat().st_size < 1_000_000
    run = opened(browser, tmp_path / "long.html")
    assert "1,000,000 steps" in run("return document.getElementById('verdict').textContent")
    content = json.loads(run("return document.getElementById('data').textContent"))
    (line,) = [curve for curve in content["curves"] if curve["name"] == "a"]
    for step, value in list(zip(line["steps"], line["violation"]["mean"], strict=True))[:-1]:
        assert value == pytest.approx(2.718281828 ** (-step / 2e5), rel=0.01)


def test_a_record_without_a_step(browser, tmp_path):
    write_report(Record(Columns.of({"a": nupi.Equality()}), 10), tmp_path / "empty.html")
    run = opened(browser, tmp_path / "empty.html")
    assert run("return document.getElementById('verdict').textContent") == "Nothing has been recorded yet."
