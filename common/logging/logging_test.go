package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/logging"
)

// Each line is one JSON object, with the caller's place and the values.
func TestLog_JSON(t *testing.T) {
	var out bytes.Buffer
	_, logger := logging.New(logging.Config{Format: "json", Verbosity: 2, Output: &out})
	logger.WithValues("module", "edgehub").Info("Link is up", "server", "cloud:443")
	logger.V(2).Info("Detail")
	logger.V(3).Info("Hidden")
	logger.Error(errors.New("no room"), "Failed to write\nthe store")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), &out)
	}
	var all [3]map[string]any
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &all[i]); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if caller, _ := all[i]["caller"].(string); !strings.HasPrefix(caller, "logging/logging_test.go:") {
			t.Errorf("the caller of %s", line)
		}
	}
	if l := all[0]; l["msg"] != "Link is up" || l["module"] != "edgehub" || l["server"] != "cloud:443" || l["level"] != "info" {
		t.Errorf("%v", l)
	}
	if l := all[1]; l["v"] != 2.0 || l["level"] != "info" {
		t.Errorf("%v", l)
	}
	if l := all[2]; l["level"] != "error" || l["err"] != "no room" || l["msg"] != "Failed to write\nthe store" {
		t.Errorf("%v", l)
	}
}

// Text is klog's, with the caller's place.
func TestLog_text(t *testing.T) {
	var out bytes.Buffer
	_, logger := logging.New(logging.Config{Verbosity: 0, Output: &out})
	logger.Info("Link is up", "server", "cloud:443")
	logger.V(1).Info("Hidden")
	if got := out.String(); !strings.HasPrefix(got, "I") || !strings.Contains(got, `logging_test.go:`) || !strings.Contains(got, `] "Link is up" server="cloud:443"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

// The verbosity of one module changes while the program runs, and nothing else's.
func TestLog_Set(t *testing.T) {
	var out bytes.Buffer
	l, logger := logging.New(logging.Config{Verbosity: 0, Output: &out})
	hub, store := logger.WithValues("module", "edgehub").WithName("x"), logger.WithValues("module", "store")
	wrote := func() string {
		out.Reset()
		hub.V(4).Info("hub")
		store.V(4).Info("store")
		logger.V(4).Info("plain")
		return strings.Join(strings.Fields(strings.NewReplacer("\n", " ").Replace(words(out.String()))), " ")
	}
	check := func(want string) {
		t.Helper()
		if got := wrote(); got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	}
	check("")
	set := func(module string, verbosity int) {
		t.Helper()
		if err := l.Set(module, verbosity); err != nil {
			t.Fatal(err)
		}
	}
	set("edgehub", 4)
	check("hub")
	set("", 4)
	check("hub store plain")
	set("store", 1)
	check("hub plain")
	set("", 0)
	check("")
	for _, bad := range []int{-1, 11} {
		if l.Set("edgehub", bad) == nil {
			t.Errorf("a verbosity of %d is taken", bad)
		}
	}
	for i := range 64 {
		set(fmt.Sprint("module", i), 1)
	}
	if l.Set("one-more", 1) == nil {
		t.Error("there is no bound on modules")
	}
	set("module0", 2) // it has one already
	set("", 0)
	set("one-more", 1)
}

// words are the messages of a text.
func words(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		for _, w := range []string{"hub", "store", "plain"} {
			if strings.Contains(line, `] "`+w+`"`) || strings.Contains(line, `"`+w+`"`) && strings.Contains(line, `x: `) || strings.Contains(line, `x: `+w) {
				all = append(all, w)
			}
		}
	}
	return strings.Join(all, " ")
}

// What repeats is counted, and other values or another message are not held back.
func TestLog_repeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		_, logger := logging.New(logging.Config{Format: "json", Output: &out})
		for i := range 100 {
			logger.Error(errors.New("refused"), "Failed to dial", "server", "a")
			if i < 3 {
				logger.Error(errors.New("refused"), "Failed to dial", "server", "b")
			}
		}
		if a, b := strings.Count(out.String(), `"server":"a"`), strings.Count(out.String(), `"server":"b"`); a != 5 || b != 3 {
			t.Errorf("%d of a, %d of b:\n%s", a, b, &out)
		}
		time.Sleep(time.Minute)
		out.Reset()
		logger.Error(errors.New("refused"), "Failed to dial", "server", "a")
		if !strings.Contains(out.String(), `"suppressedRepeats":95`) {
			t.Errorf("after a minute: %s", &out)
		}
		out.Reset()
		for i := range 10000 { // more than are remembered
			logger.Info("Progress", "done", i)
		}
		if n := strings.Count(out.String(), "\n"); n != 10000 {
			t.Errorf("%d of 10000 messages with values of their own", n)
		}
		// They took the place of the older messages, whose counts begin again.
		out.Reset()
		for range 4 {
			logger.Error(errors.New("refused"), "Failed to dial", "server", "a")
		}
		logger.Info("Progress", "done", 0)
		for range 9 {
			logger.Error(errors.New("refused"), "Failed to dial", "server", "a")
		}
		if n := strings.Count(out.String(), `"server":"a"`); n != 5 {
			t.Errorf("a message was written %d times", n)
		}
	})
}
