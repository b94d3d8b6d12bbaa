package beehive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
)

// module is a Module made of a function.
type module struct {
	name message.Name
	run  func(ctx context.Context, port *beehive.Port) error
}

func (m module) Name() message.Name                                { return m.name }
func (m module) Run(ctx context.Context, port *beehive.Port) error { return m.run(ctx, port) }

var errBroken = errors.New("broken")

func idle(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	<-ctx.Done()
	return nil
}

func TestRunner_startsInOrderStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		var entries []beehive.Entry
		for _, name := range []message.Name{"a", "b", "c"} {
			entries = append(entries, beehive.Entry{Module: module{name, func(ctx context.Context, port *beehive.Port) error {
				log = append(log, fmt.Sprintf("%s starts", name))
				time.Sleep(time.Second)
				port.Ready()
				<-ctx.Done()
				time.Sleep(time.Second)
				log = append(log, fmt.Sprintf("%s stops", name))
				return ctx.Err()
			}}})
		}
		b := beehivetest.Run(t, nil, entries...)
		b.Await("c", beehive.Ready)
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"a starts", "b starts", "c starts", "c stops", "b stops", "a stops"}, log); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		for _, h := range b.Runner.Health() {
			if h.State != beehive.Stopped || h.LastError != "" {
				t.Errorf("health %+v, want Stopped without an error", h)
			}
		}
	})
}

func TestRunner_aSlowStartDoesNotHoldUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := module{"slow", func(ctx context.Context, port *beehive.Port) error {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Minute):
			}
			return idle(ctx, port)
		}}
		b := beehivetest.Run(t, nil, beehive.Entry{Module: slow, StartTimeout: 5 * time.Second}, beehive.Entry{Module: module{"next", idle}})
		time.Sleep(4 * time.Second)
		synctest.Wait()
		want := []beehive.ModuleHealth{{Name: "slow", State: beehive.Starting}, {Name: "next", State: beehive.Stopped}}
		if diff := cmp.Diff(want, b.Runner.Health(), noTimes); diff != "" {
			t.Errorf("after 4s (-want +got):\n%s", diff)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		want[1].State = beehive.Ready
		if diff := cmp.Diff(want, b.Runner.Health(), noTimes); diff != "" {
			t.Errorf("after 5s (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want[0].State = beehive.Ready
		if diff := cmp.Diff(want, b.Runner.Health(), noTimes); diff != "" {
			t.Errorf("after 65s (-want +got):\n%s", diff)
		}
	})
}

var noTimes = cmpopts.IgnoreFields(beehive.ModuleHealth{}, "Since")

func TestRunner_failuresThatEndIt(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(ctx context.Context, port *beehive.Port) error
		want string
	}{
		"an error": {func(context.Context, *beehive.Port) error { return errBroken }, "module bad: broken"},
		"an error later": {func(ctx context.Context, port *beehive.Port) error {
			port.Ready()
			time.Sleep(time.Hour)
			return errBroken
		}, "module bad: broken"},
		"a panic":      {func(context.Context, *beehive.Port) error { panic("oops") }, "module bad: panic: oops"},
		"an early end": {func(context.Context, *beehive.Port) error { return nil }, "module bad: returned without being stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped := false
				good := module{"good", func(ctx context.Context, port *beehive.Port) error {
					defer func() { stopped = true }()
					return idle(ctx, port)
				}}
				b := beehivetest.Run(t, nil, beehive.Entry{Module: good}, beehive.Entry{Module: module{"bad", c.run}})
				<-b.Done()
				if err := b.Stop(); err == nil || err.Error() != c.want {
					t.Errorf("Run returned %v, want %s", err, c.want)
				}
				if !stopped {
					t.Error("the other module was not stopped")
				}
				if h := b.Runner.Health()[1]; h.State != beehive.Failed || !strings.HasSuffix(c.want, h.LastError) {
					t.Errorf("health %+v, want Failed with the error", h)
				}
				if err := b.Runner.Failure(); err == nil || !strings.HasPrefix(err.Error(), "bad: ") {
					t.Errorf("Failure is %v, want it to name the module", err)
				}
			})
		})
	}
}

func TestRunner_restartsWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var starts []time.Duration
		flaky := module{"flaky", func(ctx context.Context, port *beehive.Port) error {
			starts = append(starts, time.Since(begin))
			port.Ready()
			switch len(starts) {
			case 3:
				panic(errBroken)
			case 5: // healthy for long enough: the next wait is the shortest again
				time.Sleep(time.Minute)
				return errBroken
			case 7:
				<-ctx.Done()
				return nil
			}
			return errBroken
		}}
		b := beehivetest.Run(t, nil, beehive.Entry{Module: flaky, Restart: beehive.OnFailure(beehive.Backoff{
			Min: time.Second, Max: 4 * time.Second, Jitter: 1e-9, Reset: time.Minute,
		})})
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		want := []beehive.ModuleHealth{{Name: "flaky", State: beehive.BackingOff, LastError: "broken"}}
		if diff := cmp.Diff(want, b.Runner.Health(), noTimes); diff != "" {
			t.Errorf("after the first failure (-want +got):\n%s", diff)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		want = []beehive.ModuleHealth{{Name: "flaky", State: beehive.Ready, Restarts: 6, LastError: "broken"}}
		if diff := cmp.Diff(want, b.Runner.Health(), noTimes); diff != "" {
			t.Errorf("in the end (-want +got):\n%s", diff)
		}
		for i := range starts {
			starts[i] = starts[i].Round(time.Second)
		}
		if diff := cmp.Diff([]time.Duration{0, 1e9, 3e9, 7e9, 11e9, 72e9, 74e9}, starts); diff != "" {
			t.Errorf("starts (-want +got):\n%s", diff)
		}
	})
}

func TestRunner_stopEndsABackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := module{"bad", func(context.Context, *beehive.Port) error { return errBroken }}
		b := beehivetest.Run(t, nil, beehive.Entry{Module: bad, Restart: beehive.OnFailure(beehive.Backoff{Min: time.Hour})})
		synctest.Wait()
		start := time.Now()
		if err := b.Stop(); err != nil || time.Since(start) != 0 {
			t.Errorf("Stop returned %v after %v, want nil at once", err, time.Since(start))
		}
	})
}

func TestRunner_saysWhoIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := module{"stuck", func(_ context.Context, port *beehive.Port) error {
			port.Ready()
			<-release
			return nil
		}}
		good := false
		b := beehivetest.Run(t, nil,
			beehive.Entry{Module: module{"good", func(ctx context.Context, port *beehive.Port) error {
				defer func() { good = true }()
				return idle(ctx, port)
			}}},
			beehive.Entry{Module: stuck, StopTimeout: 3 * time.Second})
		b.Await("stuck", beehive.Ready)
		if err := b.Stop(); err == nil || err.Error() != "module stuck did not stop within 3s" {
			t.Errorf("Run returned %v", err)
		}
		if !good {
			t.Error("the module before the stuck one was not stopped")
		}
		close(release)
	})
}

// A caller that waits for a module that fails gets the error at once; a message that was merely
// sent to it waits for its next run.
func TestRunner_failureWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail, runs := make(chan struct{}), 0
		var again []any
		flaky := module{"flaky", func(ctx context.Context, port *beehive.Port) error {
			port.Ready()
			if runs++; runs == 1 {
				if _, err := port.Receive(ctx); err != nil { // a request, never answered
					return err
				}
				<-fail
				return errBroken
			}
			for {
				m, err := port.Receive(ctx)
				if err != nil {
					return err
				}
				again = append(again, m.Content)
			}
		}}
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}},
			beehive.Entry{Module: flaky, Mailbox: 2, Restart: beehive.OnFailure(beehive.Backoff{Min: time.Hour})})
		b.Await("flaky", beehive.Ready)
		a := b.Port("a")
		ask := func(n int) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := a.SendSync(t.Context(), "flaky", double.New(message.Resource{}, n))
				done <- err
			}()
			synctest.Wait()
			return done
		}
		received := ask(1)
		waiting := ask(2)
		if err := a.Send(t.Context(), "flaky", work.New(message.Resource{}, 3)); err != nil {
			t.Fatal(err)
		}
		heldBack := ask(4)
		close(fail)
		for name, done := range map[string]chan error{"received": received, "waiting": waiting, "held back": heldBack} {
			if err := <-done; !errors.Is(err, beehive.ErrNotRunning) {
				t.Errorf("request %s: %v, want ErrNotRunning", name, err)
			}
		}
		if err := <-ask(5); !errors.Is(err, beehive.ErrNotRunning) {
			t.Errorf("request while it backs off: %v, want ErrNotRunning", err)
		}
		if err := a.Send(t.Context(), "flaky", work.New(message.Resource{}, 6)); err != nil {
			t.Errorf("message while it backs off: %v, want it to wait", err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]any{3, 6}, again); diff != "" {
			t.Errorf("what the next run received (-want +got):\n%s", diff)
		}
	})
}

func TestRunner_aPortEndsWithItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ports := make(chan *beehive.Port, 2)
		flaky := module{"flaky", func(ctx context.Context, port *beehive.Port) error {
			ports <- port
			if len(ports) == 1 {
				return errBroken
			}
			<-ctx.Done() // never ready
			return nil
		}}
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}}, beehive.Entry{Module: flaky, Restart: beehive.OnFailure(beehive.Backoff{})})
		b.Port("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		old := <-ports
		old.Ready()
		_, receiveErr := old.Receive(t.Context())
		_, syncErr := old.SendSync(t.Context(), "a", double.New(message.Resource{}, 1))
		for name, err := range map[string]error{
			"Send": old.Send(t.Context(), "a", work.New(message.Resource{}, 1)), "Receive": receiveErr, "SendSync": syncErr,
		} {
			if !errors.Is(err, beehive.ErrNotRunning) {
				t.Errorf("%s of an old port returned %v, want ErrNotRunning", name, err)
			}
		}
		if h := b.Runner.Health()[1]; h.State != beehive.Starting {
			t.Errorf("an old port made the module %s", h.State)
		}
	})
}

// A module that starts late, or again, receives the newest state of its groups, once, and no
// messages that aren't state.
func TestRunner_stateOfGroupsIsRetainedForRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := message.NewTopic[string]("link", message.Query, message.Latest)
		note := message.NewTopic[string]("note", message.Insert, message.Every)
		var runs [][]string
		fail := make(chan struct{})
		listener := module{"listener", func(ctx context.Context, port *beehive.Port) error {
			port.Ready()
			runs = append(runs, nil)
			n := len(runs) - 1
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() {
				select {
				case <-fail:
				case <-ctx.Done():
				}
				cancel()
			}()
			for {
				m, err := port.Receive(ctx)
				if err != nil {
					return errBroken
				}
				runs[n] = append(runs[n], fmt.Sprintf("%s %v", m.Key(), m.Content))
			}
		}}
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "hub", Groups: []message.Group{"link"}}}, beehive.Entry{
			Module: listener, Groups: []message.Group{"link"}, Restart: beehive.OnFailure(beehive.Backoff{Min: time.Second, Jitter: 1e-9}),
		})
		b.Await("listener", beehive.Ready)
		tell := func(m message.Message) {
			if err := b.Port("hub").SendToGroup(t.Context(), "link", m); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		restart := func(meanwhile ...message.Message) {
			fail <- struct{}{}
			synctest.Wait()
			for _, m := range meanwhile { // it backs off
				tell(m)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		for _, m := range []string{"up 0", "down 0", "up 1"} {
			tell(link.New(message.Resource{}, m))
		}
		tell(note.New(message.Resource{}, "a"))
		restart()
		restart(link.New(message.Resource{}, "down 1"), note.New(message.Resource{}, "b"), link.New(message.Resource{}, "up 2"))
		tell(link.New(message.Resource{}, "down 2"))
		restart()
		want := [][]string{
			{"link.query up 0", "link.query down 0", "link.query up 1", "note.insert a"},
			{"link.query up 1"},
			{"link.query down 1", "note.insert b", "link.query up 2", "link.query down 2"},
			{"link.query down 2"},
		}
		if diff := cmp.Diff(want, runs); diff != "" {
			t.Errorf("what each run received (-want +got):\n%s", diff)
		}
		_ = b.Stop() // the listener calls being stopped a failure
	})
}

func TestNewRunner_refuses(t *testing.T) {
	ok := module{"a", idle}
	for name, c := range map[string]struct {
		entries []beehive.Entry
		want    string
	}{
		"two of a name": {[]beehive.Entry{{Module: ok}, {Module: ok}}, `two modules are called "a"`},
		"no module":     {[]beehive.Entry{{}}, "entry 0 has no module"},
		"no name":       {[]beehive.Entry{{Module: module{}}}, "entry 0: module beehive_test.module has no name"},
		"a negative":    {[]beehive.Entry{{Module: ok, Mailbox: -1}}, "module a: a bound below 0"},
		"a group twice": {[]beehive.Entry{{Module: ok, Groups: []message.Group{"g", "g"}}}, `module a: group "g" is empty or named twice`},
		"a back-off upside down": {[]beehive.Entry{{Module: ok, Restart: beehive.OnFailure(beehive.Backoff{Min: 2, Max: 1})}},
			"module a: back-off {Min:2ns Max:1ns Jitter:0.2 Reset:1m0s}: want 0 <= Min <= Max, Jitter from 0 to 1, Reset >= 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := beehive.NewRunner(beehive.Config{}, c.entries)
			if err == nil || err.Error() != "wiring: "+c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

type talkative struct{ module }

func (talkative) Topics() []message.Key { return []message.Key{work.Key(), state.Key()} }

func TestWiring(t *testing.T) {
	r, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{
		{Module: module{"edgehub", idle}, Restart: beehive.OnFailure(beehive.Backoff{})},
		{Module: talkative{module{"metamanager", idle}}, Groups: []message.Group{"link", "config"}, Mailbox: 1024},
	})
	if err != nil {
		t.Fatal(err)
	}
	var table, js bytes.Buffer
	if err := errors.Join(r.Wiring().WriteTable(&table), r.Wiring()[1:].WriteJSON(&js)); err != nil {
		t.Fatal(err)
	}
	wantTable := `
MODULE        GROUPS        RESTART                  MAILBOX   TOPICS
edgehub       -             on failure, 1s to 1m0s   256       -
metamanager   link,config   never                    1024      work.update,state.update
`
	if diff := cmp.Diff(strings.TrimPrefix(wantTable, "\n"), table.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	wantJSON := `[
  {
    "name": "metamanager",
    "groups": [
      "link",
      "config"
    ],
    "restart": "never",
    "mailbox": 1024,
    "topics": [
      "work.update",
      "state.update"
    ]
  }
]
`
	if diff := cmp.Diff(wantJSON, js.String()); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if names := r.Health(); !slices.ContainsFunc(names, func(h beehive.ModuleHealth) bool { return h.Name == "metamanager" && h.State == beehive.Stopped }) {
		t.Errorf("health before Run: %+v", names)
	}
}
