package trial

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// Cut breaks a node's uplink; its LAN stays.
func (t *Trial) Cut(ctx context.Context, name string, how lab.Cut) error {
	return t.setCut(ctx, name, how)
}

// Heal undoes Cut.
func (t *Trial) Heal(ctx context.Context, name string) error { return t.setCut(ctx, name, lab.Whole) }

func (t *Trial) setCut(ctx context.Context, name string, how lab.Cut) error {
	if n, ok := t.guestNode(name); ok {
		return t.cutGuest(ctx, n, how)
	}
	return t.withNode(ctx, name, func(n Node) error {
		// Written first: the state holds over a crash in between, and for a reboot.
		if err := t.change(func(s *State) { s.Hosts[name].Cut = how }); err != nil {
			return err
		}
		if !t.machine(name).Running() {
			return nil // takes effect when it boots
		}
		return lab.SetCut(t.machine(router).Host, n.Number, how)
	})
}

// Shape limits a node's uplink; the zero Shape removes the limits.
func (t *Trial) Shape(ctx context.Context, name string, shape lab.Shape) error {
	return t.withNode(ctx, name, func(n Node) error {
		if err := t.change(func(s *State) { s.Hosts[name].Shape = shape }); err != nil {
			return err
		}
		if !t.machine(name).Running() {
			return nil
		}
		return lab.SetShape(t.machine(router).Host, t.machine(name).Host, n.Number, shape)
	})
}

// Lease changes the address and the default route that a node has of its uplink's network, now and
// at each boot; the zero Lease is the usual one.
func (t *Trial) Lease(ctx context.Context, name string, lease lab.Lease) error {
	return t.withNode(ctx, name, func(n Node) error {
		if err := t.change(func(s *State) { s.Hosts[name].Lease = lease }); err != nil {
			return err
		}
		if !t.machine(name).Running() {
			return nil
		}
		return lab.SetLease(t.machine(name).Host, n.Number, lease)
	})
}

// LinkIPv6 gives a node's link IPv6 in addition to IPv4, for as long as the trial is there.
func (t *Trial) LinkIPv6(ctx context.Context, name string) error {
	return t.withNode(ctx, name, func(n Node) error {
		if err := t.change(func(s *State) { s.Hosts[name].IPv6 = true }); err != nil {
			return err
		}
		r, m := t.machine(router).Host, t.machine(name)
		if !m.Running() {
			return nil
		}
		return errors.Join(lab.LinkIPv6(r, m.Host, t.offered(), n.Number), lab.SetShape(r, m.Host, n.Number, m.Shape), lab.SetCut(r, n.Number, m.Cut))
	})
}

// PowerOff ends a node and everything on it, as a power cut would.
func (t *Trial) PowerOff(ctx context.Context, name string) error {
	if n, ok := t.guestNode(name); ok {
		return t.withGuest(ctx, n, func(m *guests.Machine) error { return m.Cut(ctx) })
	}
	return t.withNode(ctx, name, func(Node) error { return t.halt(ctx, name) })
}

// Reboot ends a node and everything on it, as a power cut would, and boots it again: processes,
// mounts, interfaces, cgroups and everything in /run are gone; files on its disk are there. Offline
// cuts its uplink before it boots. Reboot returns when its programs are started.
func (t *Trial) Reboot(ctx context.Context, name string, offline bool) error {
	if n, ok := t.guestNode(name); ok {
		return t.rebootGuest(ctx, n, false, offline)
	}
	return t.withNode(ctx, name, func(n Node) error { return t.reboot(ctx, n, offline) })
}

// shutdownPatience is for an orderly end of a host: logind's delay, and the stop of the programs.
const shutdownPatience = 3 * time.Minute

// RebootOrderly is Reboot as a person asks for it: logind announces it and waits for the locks, all
// processes get SIGTERM, and only then the power goes. One that was asked for on the host is
// brought to its end.
func (t *Trial) RebootOrderly(ctx context.Context, name string, offline bool) error {
	if n, ok := t.guestNode(name); ok {
		return t.rebootGuest(ctx, n, true, offline)
	}
	return t.withNode(ctx, name, func(n Node) error {
		if n.Plain {
			return cli.Badf("%s has no logind", name)
		}
		id := t.machine(name).Processes["logind"]
		if id.PID == 0 {
			return cli.Badf("no logind was started on %s", name)
		}
		var asked error // one that is ending everything has no bus any more
		if id.Alive() {
			_, asked = t.run(name, t.logind(), "reboot")
		}
		err := poll(ctx, shutdownPatience, func(context.Context) (bool, error) {
			return !id.Alive(), errors.New("it has not gone down")
		})
		if err != nil && id.Alive() {
			return fmt.Errorf("%w\nend of logind's log:\n%s", errors.Join(asked, err), t.logTail(name, "logind"))
		}
		return t.reboot(ctx, n, offline)
	})
}

func (t *Trial) reboot(ctx context.Context, n Node, offline bool) error {
	name := n.Name
	if err := t.halt(ctx, name); err != nil {
		return err
	}
	if offline && t.machine(name).Cut == lab.Whole {
		if err := t.change(func(s *State) { s.Hosts[name].Cut = lab.Carrier }); err != nil {
			return err
		}
	}
	t.say(name + " is down")
	if err := t.boot(ctx, name); err != nil {
		return err
	}
	if err := t.wire(name); err != nil {
		return err
	}
	if err := host.MakeCgroup(t.cgroup(name)); err != nil {
		return err
	}
	for _, p := range t.programs(name) {
		if err := t.start(ctx, name, p); err != nil {
			return err
		}
	}
	t.say(name + " has booted")
	return nil
}

// Set changes settings of an edge's edgecore.yaml, each path=value, and starts edgecore again with
// them. Pods keep running.
func (t *Trial) Set(ctx context.Context, name string, settings []string) error {
	return t.withNode(ctx, name, func(n Node) error {
		if n.Plain {
			return cli.Badf("%s has no edgecore.yaml", name)
		}
		for _, s := range settings {
			if _, _, err := parseSet(s); err != nil {
				return cli.Bad(err)
			}
		}
		p, err := t.program(name, "edgecore")
		if err != nil {
			return err
		}
		if !t.machine(name).Running() {
			return cli.Badf("host %s is not running: 'trial up' boots it", name)
		}
		before := t.machine(name).Set
		if err := t.change(func(s *State) { s.Hosts[name].Set = merge(before, settings) }); err != nil {
			return err
		}
		file, err := t.edgecoreFile(n)
		if err != nil {
			return err
		}
		if err := t.writeHost(name, edgecoreConfig, file, 0o644); err != nil {
			return err
		}
		if err := t.machine(name).Processes[p.name].Stop(ctx, stopPatience); err != nil {
			return err
		}
		return t.start(ctx, name, p)
	})
}

// merge puts later settings in place of earlier ones of the same path.
func merge(before, more []string) []string {
	all := append([]string(nil), before...)
next:
	for _, s := range more {
		key, _, _ := strings.Cut(s, "=")
		for i := range all {
			if have, _, _ := strings.Cut(all[i], "="); have == key {
				all[i] = s
				continue next
			}
		}
		all = append(all, s)
	}
	return all
}

func (t *Trial) withNode(ctx context.Context, name string, f func(Node) error) error {
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	n, err := t.node(name)
	if err != nil {
		return err
	}
	if !t.machine(router).Running() {
		return cli.Badf("the trial's router is not running: 'trial up' boots what is missing")
	}
	if err := f(n); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
