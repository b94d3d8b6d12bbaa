package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	guests "github.com/skerry-io/skerry/tests/machine"
)

// guestPatience is for one thing that a guest does, which has one slow processor.
const guestPatience = 10 * time.Minute

// startGuest switches a guest on that is off, and does not wait for its boot.
func (t *Trial) startGuest(ctx context.Context, n Node) (*guests.Machine, error) {
	m := guests.Open(t.guestSpec(n), t.guest(n.Name).First)
	if m.On() {
		return m, nil
	}
	// What a kernel that was killed has left.
	if err := m.Cut(ctx); err != nil {
		return nil, err
	}
	m, err := guests.New(ctx, t.guestSpec(n))
	if err != nil {
		return nil, err
	}
	if err := lab.SetCut(t.machine(router).Host, n.Number, t.guest(n.Name).Cut); err != nil {
		return nil, err
	}
	if err := m.Start(); err != nil {
		return nil, err
	}
	return m, t.changeGuest(n.Name, func(g *Guest) { g.First = m.First() })
}

// booted succeeds in a guest once its boot has ended, also with a unit that has failed.
const booted = "case $(systemctl is-system-running --wait) in running|degraded) ;; *) exit 1 ;; esac"

// awaitGuest repeats a script in a guest until it succeeds.
func (t *Trial) awaitGuest(ctx context.Context, n Node, m *guests.Machine, script string) error {
	err := poll(ctx, guestPatience, func(ctx context.Context) (bool, error) {
		if !m.On() {
			return true, errors.New("it has ended")
		}
		_, err := m.Run(ctx, script)
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("%s (console: %s): %w", n.Name, m.Console(), err)
	}
	return nil
}

// upGuest brings a guest up: boots it, installs edgecore's package, joins, and waits until its node
// is Ready. cloudReady is closed when it may join.
func (t *Trial) upGuest(ctx context.Context, n Node, cloudReady <-chan struct{}) error {
	m, err := t.startGuest(ctx, n)
	if err != nil {
		return err
	}
	if !t.guest(n.Name).Joined {
		t.say(n.Name + " boots; until it has joined takes a minute or more")
		if err := t.awaitGuest(ctx, n, m, booted); err != nil {
			return err
		}
	}
	select {
	case <-cloudReady:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !t.guest(n.Name).Joined {
		if err := t.joinGuest(ctx, n, m); err != nil {
			return fmt.Errorf("joining %s: %w", n.Name, err)
		}
	}
	if t.guest(n.Name).Cut != lab.Whole {
		return nil
	}
	return t.awaitGuestReady(ctx, n, m)
}

func (t *Trial) joinGuest(ctx context.Context, n Node, m *guests.Machine) error {
	token, err := exec.CommandContext(ctx, t.binary("cloudcore"), "token", "create", "--kubeconfig", t.Kubeconfig(), "--node", n.Name).Output()
	if err != nil {
		return fmt.Errorf("making a join token: %w", err)
	}
	settings, err := t.guestSettings()
	if err != nil {
		return err
	}
	p := guests.Package{Root: t.root, Images: filepath.Join(t.dir, "images"), Edgecore: t.binary("edgecore"), Env: guestEnvironment()}
	if err := m.Join(ctx, p, token, string(settings)); err != nil {
		return err
	}
	return t.changeGuest(n.Name, func(g *Guest) { g.Joined = true })
}

// guestEnvironment is the part of our environment that edgecore of a guest has too: which rule is
// off (tests/campaign/sensitivity). Hosts have all of it.
func guestEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return !strings.HasPrefix(v, "SKERRY_CAMPAIGN_") })
}

// guestSettings are the trial's changes to edgecore.yaml; all else is as the package has it.
func (t *Trial) guestSettings() ([]byte, error) {
	config := doc{}
	for _, s := range append([]string{"modules.edgeHub.transport=" + t.state.Options.Link}, t.state.Options.Set...) {
		path, value, err := parseSet(s)
		if err != nil {
			return nil, err
		}
		if err := set(config, path, value); err != nil {
			return nil, cli.Badf("--set %s: %w", s, err)
		}
	}
	return yaml.Marshal(config)
}

func (t *Trial) awaitGuestReady(ctx context.Context, n Node, m *guests.Machine) error {
	cfg, err := t.Admin()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	boot := ""
	err = poll(ctx, guestPatience, func(ctx context.Context) (bool, error) {
		if boot == "" {
			if boot, err = m.BootID(ctx); err != nil {
				return false, err
			}
		}
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if why := nodeReady(node, boot); why != "" {
			return false, errors.New(why)
		}
		if why := kubeletMisses(ctx, client, n.Name, nil); why != "" {
			return false, errors.New(why)
		}
		return true, nil
	})
	if err != nil {
		log, _ := m.Run(ctx, "journalctl --boot --no-pager --unit=edgecore | tail -n 20") // only explains
		return fmt.Errorf("waiting for %s to be Ready: %w\n%s", n.Name, err, log)
	}
	t.say("node " + n.Name + " is Ready")
	return nil
}

// withGuest calls f with a guest that no other command changes in the meantime.
func (t *Trial) withGuest(ctx context.Context, n Node, f func(*guests.Machine) error) error {
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := t.Guest(n.Name)
	if err != nil {
		return err
	}
	if !t.machine(router).Running() {
		return cli.Badf("the trial's router is not running: 'trial up' boots what is missing")
	}
	if err := f(m); err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	return nil
}

// cutGuest takes a guest's uplink away, or gives it back. A cut is silent: the guest's cards know
// no carrier, and one whose tap is down when the guest writes to it keeps its processor busy for
// good.
func (t *Trial) cutGuest(ctx context.Context, n Node, how lab.Cut) error {
	if how == lab.Carrier {
		how = lab.Silent
	}
	return t.withGuest(ctx, n, func(*guests.Machine) error {
		if err := t.changeGuest(n.Name, func(g *Guest) { g.Cut = how }); err != nil {
			return err
		}
		return lab.SetCut(t.machine(router).Host, n.Number, how)
	})
}

// rebootGuest boots a guest again: by its power, or in order, by the guest's own systemd.
func (t *Trial) rebootGuest(ctx context.Context, n Node, orderly, offline bool) error {
	if offline {
		if err := t.cutGuest(ctx, n, lab.Silent); err != nil {
			return err
		}
	}
	return t.withGuest(ctx, n, func(m *guests.Machine) error {
		if !orderly {
			if err := m.Cut(ctx); err != nil {
				return err
			}
			t.say(n.Name + " is down")
			m, err := t.startGuest(ctx, n)
			if err != nil {
				return err
			}
			return t.awaitGuest(ctx, n, m, booted)
		}
		before, err := m.BootID(ctx)
		if err != nil {
			return err
		}
		if _, err := m.Run(ctx, "systemctl reboot"); err != nil && !errors.Is(err, guests.ErrSilent) {
			return err
		}
		return t.awaitGuest(ctx, n, m, "[ $(cat /proc/sys/kernel/random/boot_id) != "+before+" ] && "+booted)
	})
}

// SwitchOn switches a machine on that is off, and does not wait for its boot.
func (t *Trial) SwitchOn(ctx context.Context, name string) error {
	n, ok := t.guestNode(name)
	if !ok {
		return cli.Badf("there is no machine %q in this trial", name)
	}
	return t.withGuest(ctx, n, func(*guests.Machine) error {
		_, err := t.startGuest(ctx, n)
		return err
	})
}

// endGuests ends what guests have outside the router's namespaces.
func (t *Trial) endGuests(ctx context.Context) error {
	if t.state == nil {
		return nil
	}
	var errs []error
	for _, n := range t.state.Options.Guests() {
		errs = append(errs, guests.Open(t.guestSpec(n), t.guest(n.Name).First).Cut(ctx))
	}
	return errors.Join(errs...)
}
