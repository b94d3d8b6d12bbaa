package webui_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/cmd/kubectl-skerry/webui"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/tests/browser"
)

// devices are as many, the last of them with a hostile name of its version, and some down.
func devices(n int, down ...int) (nodes []fleet.Node) {
	now := metav1.NewTime(time.Now().Add(-3 * time.Hour).Truncate(time.Second))
	for i := range n {
		d := fleet.Node{Name: fmt.Sprintf("edge-%04d", i), Pool: fmt.Sprintf("site-%d", i%20), Link: fleet.Up, Since: &now, LastContact: &now, Pods: 12, Running: 12}
		d.Transport, d.Version = "quic", "v0.2.0-rc.1+0123456789ab"
		for _, bad := range down {
			if i == bad {
				d.Link, d.Problems = fleet.Down, []fleet.Problem{{Reason: "LinkDown", Message: "link down <img src=x onerror=alert(1)>", Action: "go there"}}
			}
		}
		nodes = append(nodes, d)
	}
	return fleet.Worst(nodes)
}

// A thousand devices: an update touches the rows that changed and no other, the focus stays where
// it is, and no text becomes HTML.
func TestOperate_08_AThousandDevices(t *testing.T) {
	s := webui.New(webui.Config{Token: token, Device: func(context.Context, string) (webui.Timeline, error) { return webui.Timeline{}, nil }, Recorder: func(context.Context, string) (webui.Timeline, error) {
		return webui.Timeline{Entries: []webui.Entry{{Time: time.Now(), Kind: "Boot", Message: "<script>document.title = 'owned'</script>", From: "device"}}}, nil
	}})
	set := func(down ...int) {
		t.Helper()
		nodes := devices(1000, down...)
		if err := s.Set(webui.Fleet{Summary: fleet.Summary(nodes), Nodes: nodes}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	set(7)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	p := browser.Open(t, fmt.Sprintf("http://%s/#token=%s", l.Addr(), token), 1180, 800)
	p.Wait(`document.querySelectorAll('#devices tbody tr').length === 1000`, time.Minute)
	p.Eval(`
		window.touched = new Set(); window.longest = 0; window.last = performance.now();
		new MutationObserver(all => { for (const m of all) {
			const tr = (m.target.nodeType === 1 ? m.target : m.target.parentElement).closest('tr');
			for (const n of [...m.addedNodes, ...m.removedNodes]) if (n.dataset?.key) touched.add(n.dataset.key);
			if (tr?.dataset.key) touched.add(tr.dataset.key);
		} }).observe(document.querySelector('#devices tbody'), {subtree: true, childList: true, characterData: true, attributes: true});
		const frame = () => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; requestAnimationFrame(frame) };
		requestAnimationFrame(frame);
		document.querySelector('[data-key=edge-0500] a').focus({preventScroll: true});
		touched.clear()`, nil)
	set(7, 500)
	p.Wait(`document.querySelector('[data-key=edge-0500] [data-state=Down]')`, time.Minute)
	var update float64
	p.Eval(`longest`, &update)
	lightAndDark(t, p)
	var touched []string
	p.Eval(`[...touched]`, &touched)
	if len(touched) > 3 {
		t.Errorf("one device changed, and the page touched %d rows: %.300v", len(touched), touched)
	}
	var focus, title string
	p.Eval(`document.activeElement.textContent`, &focus)
	p.Eval(`document.title`, &title)
	if focus != "edge-0500" || title != "(2) Skerry: 2 down" {
		t.Errorf("the focus is on %q, the title %q", focus, title)
	}
	p.Press("Enter")
	p.Wait(`document.querySelector('#timeline').innerText.includes('<script>')`, time.Minute)
	p.Press("Escape", "/", "e", "d", "g", "e", "-", "0", "5")
	p.Wait(`document.querySelectorAll('#devices tbody tr:not([hidden])').length === 100`, time.Minute)
	p.Press("Tab", "Tab") // the box for problems, then the first site
	p.Press("Escape")
	p.Wait(`document.querySelectorAll('#devices tbody tr:not([hidden])').length === 1000`, time.Minute)
	var images int
	var longest float64
	p.Eval(`document.images.length + document.querySelectorAll('main script').length`, &images)
	p.Eval(`longest`, &longest)
	if images > 0 || len(p.Complaints) > 0 {
		t.Errorf("%d elements came of texts; complaints: %v", images, p.Complaints)
	}
	t.Logf("the longest frame took %.0f ms, with the filter %.0f ms", update, longest)
}

// lightAndDark: both schemes have a background of their own, on which all text is readable.
func lightAndDark(t *testing.T, p *browser.Page) {
	t.Helper()
	var light, dark string
	for scheme, ground := range map[string]*string{"light": &light, "dark": &dark} {
		p.Scheme(scheme)
		p.Eval(`getComputedStyle(document.body).backgroundColor`, ground)
		readable(t, p, scheme)
	}
	if light == dark {
		t.Errorf("the background is %s in both schemes", light)
	}
}

// leastContrast is the ratio that WCAG 2.2 requires of text, 1.4.3.
const leastContrast = 4.5

// readable: no column's title is truncated in a window of usual width, a truncated text has a
// tooltip, and each text has enough contrast.
func readable(t *testing.T, p *browser.Page, scheme string) {
	t.Helper()
	var titles, texts, pale []string
	var truncated int
	p.Eval(`[...document.querySelectorAll('main section:not([hidden]) th')].filter(th => th.scrollWidth > th.clientWidth).map(th => th.innerText)`, &titles)
	p.Eval(`[...document.querySelectorAll('#devices td')].filter(td => td.scrollWidth > td.clientWidth && td.title !== td.innerText).map(td => td.innerText)`, &texts)
	p.Eval(`[...document.querySelectorAll('#devices td')].filter(td => td.scrollWidth > td.clientWidth).length`, &truncated)
	if len(titles) > 0 || len(texts) > 0 || truncated == 0 {
		t.Errorf("%s: truncated titles: %q; texts without a tooltip: %.300q; %d truncated texts", scheme, titles, texts, truncated)
	}
	p.Eval(fmt.Sprintf(`(() => {
		const light = color => { // relative luminance, WCAG 2.2
			const [r, g, b] = color.match(/[\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
			return 0.2126 * r + 0.7152 * g + 0.0722 * b;
		};
		const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c } };
		const pale = new Set();
		const texts = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
		for (const e of texts) {
			const color = getComputedStyle(e).color, [a, b] = [light(color), light(behind(e))];
			const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < %v) pale.add(color + ' on ' + behind(e) + ', such as ' + e.innerText.slice(0, 40));
		}
		if (texts.length < 1000) pale.add(texts.length + ' texts alone are shown');
		return [...pale].slice(0, 10);
	})()`, leastContrast), &pale)
	if len(pale) > 0 {
		t.Errorf("%s: texts with too little contrast: %q", scheme, pale)
	}
}
