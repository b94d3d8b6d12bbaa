// Package browser drives a headless Chromium by its DevTools protocol, for tests of pages.
//
// It owns the process, which ends with the test, and a pipe to it: there is no port. It refuses to
// reach any host but loopback. A Page is for one goroutine.
package browser

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is in Debian's package chromium-headless-shell.
const program = "chromium-headless-shell"

// limit bounds each command.
const limit = 30 * time.Second

// Page is one page of a browser of its own.
type Page struct {
	t       testing.TB
	to      *os.File
	from    *bufio.Reader
	id      int
	session string
	// Complaints are the console's errors, exceptions, and violations of the
	// Content-Security-Policy.
	Complaints []string
}

// Open opens a page, whose window is so wide and high.
func Open(t testing.TB, url string, width, height int) *Page {
	t.Helper()
	theirs, to, err := os.Pipe()
	check(t, err)
	from, theirOut, err := os.Pipe()
	check(t, err)
	c := exec.CommandContext(t.Context(), program, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--no-pings",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), fmt.Sprintf("--window-size=%d,%d", width, height), "about:blank")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its children
	c.ExtraFiles = []*os.File{theirs, theirOut}         // 3 and 4
	if err := c.Start(); err != nil {
		t.Fatalf("starting %s: %v (make deps installs it)", program, err)
	}
	_, _ = theirs.Close(), theirOut.Close()
	p := &Page{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait()
		_, _ = to.Close(), from.Close()
		for range 500 { // its children write to the directory until they are gone
			if syscall.Kill(-c.Process.Pid, 0) != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	var target struct{ TargetID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Runtime", "Page", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
	p.Size(width, height)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// Size sets the size of the page's view.
func (p *Page) Size(width, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme has the page prefer light or dark.
func (p *Page) Scheme(scheme string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Eval evaluates an expression, which may be a promise, into a value.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	if e := answer.ExceptionDetails; e != nil {
		p.t.Fatalf("evaluating %s: %s", expression, cmp.Or(e.Exception.Description, e.Text))
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(answer.Result.Value, into); err != nil {
		p.t.Fatalf("evaluating %s: %s: %v", expression, answer.Result.Value, err)
	}
}

// Wait waits until an expression is true. It is asked by the page itself, at each change.
func (p *Page) Wait(expression string, longest time.Duration) {
	p.t.Helper()
	for end := time.Now().Add(longest); ; {
		var so bool
		p.Eval(fmt.Sprintf(`new Promise(done => {
			const is = () => { try { return Boolean(%s) } catch { return false } };
			if (is()) return done(true);
			const seen = new MutationObserver(() => { if (is()) { seen.disconnect(); done(true) } });
			seen.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
			setTimeout(() => { seen.disconnect(); done(is()) }, 2000);
		})`, expression), &so)
		if so {
			return
		}
		if time.Now().After(end) {
			var text string
			p.Eval(`document.body.innerText.slice(0, 3000)`, &text)
			p.t.Fatalf("after %v it is not so: %s\n%v\n%s", longest, expression, p.Complaints, text)
		}
	}
}

// Press presses keys, one after the other: Tab, Enter, Escape, ArrowDown, or a character.
func (p *Page) Press(keys ...string) {
	p.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key}
		switch {
		case codes[key] != 0:
			down["windowsVirtualKeyCode"], down["code"] = codes[key], key
			if key == "Enter" {
				down["text"] = "\r"
			}
		default:
			down["text"] = key
		}
		p.call("Input.dispatchKeyEvent", down, nil)
		p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	}
}

// Screenshot writes the view as a PNG.
func (p *Page) Screenshot(file string) {
	p.t.Helper()
	var shot struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	raw, err := base64.StdEncoding.DecodeString(shot.Data)
	check(p.t, err)
	check(p.t, os.WriteFile(file, raw, 0o644))
}

// call sends one command and waits for its answer.
func (p *Page) call(method string, params map[string]any, into any) {
	p.t.Helper()
	p.id++
	command := map[string]any{"id": p.id, "method": method}
	if params != nil {
		command["params"] = params
	}
	if p.session != "" {
		command["sessionId"] = p.session
	}
	raw, err := json.Marshal(command)
	check(p.t, err)
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	_ = p.to.SetWriteDeadline(time.Now().Add(limit))
	_, err = p.to.Write(append(raw, 0))
	check(p.t, err)
	answered := make(chan error, 1)
	go func() { answered <- p.answer(into) }()
	select {
	case err := <-answered:
		if err != nil {
			p.t.Fatalf("%s: %v", method, err)
		}
	case <-ctx.Done():
		p.t.Fatalf("%s: no answer: %v", method, ctx.Err())
	}
}

// answer reads messages until the one that answers the last command.
func (p *Page) answer(into any) error {
	for {
		raw, err := p.from.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("reading from the browser: %w", err)
		}
		var m struct {
			ID     int
			Method string
			Error  *struct{ Message string }
			Result json.RawMessage
			Params json.RawMessage
		}
		if err := json.Unmarshal(raw[:len(raw)-1], &m); err != nil {
			return fmt.Errorf("reading %.200s: %w", raw, err)
		}
		switch {
		case m.Method != "":
			p.note(m.Method, m.Params)
		case m.ID != p.id:
		case m.Error != nil:
			return errors.New(m.Error.Message)
		case into != nil:
			return json.Unmarshal(m.Result, into)
		default:
			return nil
		}
	}
}

// note keeps what the page complains of.
func (p *Page) note(method string, params json.RawMessage) {
	var m struct {
		Entry            struct{ Level, Text string }
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
		Type string
	}
	_ = json.Unmarshal(params, &m) // another event has other fields
	switch {
	case method == "Runtime.exceptionThrown":
		p.Complaints = append(p.Complaints, strings.TrimSpace(m.ExceptionDetails.Text+" "+m.ExceptionDetails.Exception.Description))
	case method == "Log.entryAdded" && m.Entry.Level == "error":
		p.Complaints = append(p.Complaints, m.Entry.Text)
	case method == "Runtime.consoleAPICalled" && m.Type == "error":
		p.Complaints = append(p.Complaints, string(params))
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
