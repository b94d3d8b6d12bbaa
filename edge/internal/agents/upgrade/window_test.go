package upgrade_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
)

// The device fetches at once and switches in its window, by its own or the named time zone. A late
// link is waited for.
func TestFleet_22_WindowIsTheDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is 2000-01-01 00:00 UTC, a Saturday
		s := newSystem(t)
		s.zone = time.FixedZone("device", 2*60*60) // 02:00 there
		s.add("v1.4.0", "program", nil)
		spec := upgradeTo("v1.4.0")
		spec.Window = &v1alpha1.OperationWindow{Days: []v1alpha1.Weekday{"Sat"}, Start: "03:00", End: "05:00"}
		o := operation(spec)
		s.linked = false
		if work, restarts := s.do(o); restarts || work.Ended != "" || work.Message != "waits for the link" {
			t.Fatalf("without a link: %+v", work)
		}
		s.linked = true
		work, restarts := s.do(o)
		if want := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC); restarts || !work.Next.Equal(want) || work.Upgrade.Fetched == 0 {
			t.Fatalf("before its window: restarts %v, next %v, want %v: %+v", restarts, work.Next, want, work)
		}
		time.Sleep(time.Until(work.Next))
		if _, restarts := s.do(o); !restarts {
			t.Errorf("in its window: %+v", o.Work)
		}
	})
}

// A window that is days away is asked for every few hours, not all the time; and it is that of the
// time that the cloud has sent, where the device's own clock is wrong.
func TestWindowIsDaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a Saturday
		s := newSystem(t)
		s.add("v1.4.0", "program", nil)
		spec := upgradeTo("v1.4.0")
		spec.Window = &v1alpha1.OperationWindow{Days: []v1alpha1.Weekday{"Tue"}, Start: "03:00", End: "05:00"}
		o := operation(spec)
		tries := 0
		for ; tries < 100; tries++ {
			work, restarts := s.do(o)
			if restarts {
				break
			}
			if wait := time.Until(work.Next); wait <= 0 || wait > 4*time.Hour {
				t.Fatalf("it is asked again after %v", wait)
			}
			time.Sleep(time.Until(work.Next))
		}
		if want := time.Date(2000, 1, 4, 3, 0, 0, 0, time.UTC); !time.Now().Truncate(time.Minute).Equal(want) || tries > 20 {
			t.Errorf("after %d tries it switches at %v, want %v", tries, time.Now(), want)
		}
		s = newSystem(t)
		s.add("v1.4.0", "program", nil)
		s.ahead = 24 * time.Hour // of the device's clock: it is Wednesday there
		spec.Window.Days = []v1alpha1.Weekday{"Wed"}
		if _, restarts := s.do(operation(spec)); !restarts {
			t.Error("it does not switch in its window")
		}
	})
}

// A program that waits for its window was unpacked once, and not again each time that it asks.
func TestWaitingProgramIsUnpackedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a Saturday
		s := newSystem(t)
		s.add("v1.4.0", "program", nil)
		spec := upgradeTo("v1.4.0")
		spec.Window = &v1alpha1.OperationWindow{Days: []v1alpha1.Weekday{"Tue"}, Start: "03:00", End: "05:00"}
		w, _ := s.process()
		o := *operation(spec)
		work := w.Do(t.Context(), o, func(drain.Work) {})
		fetched := filepath.Join(s.dir, "artefacts")
		s.check(os.Rename(fetched, fetched+".away"))
		time.Sleep(time.Until(work.Next))
		if work = w.Do(t.Context(), o, func(drain.Work) {}); work.Message != "fetched; waits for its window" || !work.Waits || !work.Next.After(time.Now()) {
			t.Errorf("the second time: %+v", work)
		}
		if files, _ := filepath.Glob(fetched + "/*.part"); len(files) > 0 {
			t.Errorf("it was fetched again: %v", files)
		}
		s.check(os.RemoveAll(fetched))
		s.check(os.Rename(fetched+".away", fetched))
		o.Spec.Window = nil
		if _, restarts := s.do(&o); !restarts {
			t.Error("it does not switch in its window")
		}
	})
}

func TestWindow(t *testing.T) {
	berlin := "Europe/Berlin"
	at := func(text string) time.Time {
		t.Helper()
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		window    v1alpha1.OperationWindow
		now, want string
	}{
		{v1alpha1.OperationWindow{Start: "02:00", End: "04:00"}, "2026-11-27T01:00:00Z", "2026-11-27T02:00:00Z"},
		{v1alpha1.OperationWindow{Start: "02:00", End: "04:00"}, "2026-11-27T03:00:00Z", "2026-11-27T03:00:00Z"},
		{v1alpha1.OperationWindow{Start: "02:00", End: "04:00"}, "2026-11-27T04:00:00Z", "2026-11-28T02:00:00Z"},
		{v1alpha1.OperationWindow{Start: "22:00", End: "04:00"}, "2026-11-27T03:00:00Z", "2026-11-27T03:00:00Z"},
		{v1alpha1.OperationWindow{Start: "22:00", End: "04:00", Days: []v1alpha1.Weekday{"Sat"}}, "2026-11-27T23:00:00Z", "2026-11-28T22:00:00Z"},
		{v1alpha1.OperationWindow{Start: "22:00", End: "04:00", Days: []v1alpha1.Weekday{"Sat"}}, "2026-11-29T03:00:00Z", "2026-11-29T03:00:00Z"},
		{v1alpha1.OperationWindow{Start: "02:00", End: "04:00", TimeZone: berlin}, "2026-07-01T00:30:00Z", "2026-07-01T00:30:00Z"},
		{v1alpha1.OperationWindow{Start: "02:00", End: "04:00", TimeZone: berlin}, "2026-11-27T00:30:00Z", "2026-11-27T01:00:00Z"},
	} {
		next, err := upgrade.NextOpen(c.window, time.UTC, at(c.now))
		if err != nil || !next.Equal(at(c.want)) {
			t.Errorf("%+v at %s: %v, %v; want %s", c.window, c.now, next, err, c.want)
		}
	}
}
