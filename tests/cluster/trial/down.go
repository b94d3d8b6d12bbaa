package trial

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// Down ends the trial and removes everything: processes, namespaces, mounts, interfaces, cgroups
// and files. It needs no state for that: hosts are found by the name of their first process, and
// everything else of a host goes with it. So it also cleans after a crash, and it may be repeated.
func (t *Trial) Down(ctx context.Context) error {
	unlock, err := t.lock(ctx)
	switch {
	case err == nil:
		defer unlock()
	case ctx.Err() != nil:
		return err
	default:
		// A state that can't be read must not keep its hosts alive.
		t.say("cleaning without the state: " + err.Error())
	}
	hosts, err := host.Marked(t.initPath(), t.markPrefix())
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range hosts {
		g.Go(func() error { return h.Halt(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	err = errors.Join(
		t.endGuests(ctx),
		lab.DisconnectMachine(t.cable()),
		host.RemoveCgroup(t.cgroupRoot()),
	)
	if err != nil {
		return err
	}
	had := t.state != nil || len(hosts) > 0
	if err := host.RemoveTree(t.dir); err != nil {
		return err
	}
	t.state = nil
	if had {
		t.say("everything is down and cleaned")
	} else {
		t.say("no trial was up")
	}
	return nil
}
