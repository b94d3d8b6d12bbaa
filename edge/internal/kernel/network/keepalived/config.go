package keepalived

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/atomicfile"
)

// retest is how long an instance that keepalived refused is skipped before it is retried: a missing
// interface may exist by then.
const retest = 20 * time.Second

var (
	// plainName matches names that are written unquoted into the configuration, and used as file
	// names.
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	// plainInterface excludes characters with a meaning for keepalived's parser; Linux allows them.
	plainInterface = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)
)

// valid excludes instances that keepalived must never read, and all but one of conflicting ones: a
// second instance with a name, or with a number of the same family on an interface, makes
// keepalived refuse its whole configuration. An active one stays.
func valid(instances []Instance, inForce func(name string) bool) (good []Instance, problems map[string]error) {
	instances = slices.Clone(instances)
	slices.SortStableFunc(instances, func(a, b Instance) int {
		if x, y := inForce(a.Name), inForce(b.Name); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	type election struct {
		iface string
		four  bool
		vrid  uint8
	}
	problems = map[string]error{}
	taken := map[election]string{}
	names := map[string]bool{}
	for _, i := range instances {
		at := election{i.Interface, i.Address.Is4(), i.VRID}
		other, clash := taken[at]
		var err error
		switch {
		case !plainName.MatchString(i.Name):
			err = fmt.Errorf("%.40q can't be the name of an instance", i.Name)
		case names[i.Name]:
			continue // the first of the name is right or wrong for both
		case !plainInterface.MatchString(i.Interface):
			err = fmt.Errorf("%.40q can't be the name of an interface here", i.Interface)
		case !i.Address.IsValid() || i.Address.Zone() != "" || slices.ContainsFunc(i.More, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4() != i.Address.Is4() }):
			err = errors.New("its addresses are not all of one family")
		case i.VRID == 0 || i.Priority == 0 || i.Priority == 255 || i.Advert < 10*time.Millisecond || i.Advert > 40950*time.Millisecond:
			err = fmt.Errorf("number %d, priority %d or interval %v can't be", i.VRID, i.Priority, i.Advert)
		case clash:
			err = fmt.Errorf("number %d on interface %s is %s's already", i.VRID, i.Interface, other)
		}
		if err != nil {
			problems[i.Name] = err
			continue
		}
		names[i.Name], taken[at] = true, i.Name
		good = append(good, i)
	}
	slices.SortFunc(good, func(a, b Instance) int { return strings.Compare(a.Name, b.Name) })
	return good, problems
}

func (d *Daemon) readExtra() ([]byte, error) {
	if d.cfg.Extra == "" {
		return nil, nil
	}
	b, err := os.ReadFile(d.cfg.Extra)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the user's sections: %w", err)
	}
	return b, nil
}

// compose makes the file that will be in force, with the instances that keepalived takes, and puts
// the user's sections, as they are tested, next to it.
func (d *Daemon) compose(ctx context.Context, instances []Instance, extra []byte) (file []byte, good []Instance, refused map[string]error, err error) {
	d.extra = nil
	own := render(d.cfg, instances)
	with := own
	if len(extra) > 0 {
		with = slices.Concat(own, []byte("\n# The user's own sections, from "+d.cfg.Extra+"\n"), extra)
	}
	if bytes.Equal(with, d.file) || len(instances)+len(extra) == 0 {
		return with, instances, nil, nil
	}
	wrong := d.test(ctx, with)
	if wrong == nil {
		if len(extra) > 0 {
			err = atomicfile.Write(d.path(fileExtra), extra, secret)
		}
		return with, instances, nil, err
	}
	if len(extra) == 0 && !errors.Is(wrong, errRefused) {
		return nil, nil, nil, wrong
	}
	// The user's sections, or an instance?
	if good, refused, err = d.sift(ctx, own, instances); err != nil {
		return nil, nil, nil, err
	}
	own = render(d.cfg, good)
	if len(extra) == 0 {
		return own, good, refused, nil
	}
	with = slices.Concat(own, []byte("\n# The user's own sections, from "+d.cfg.Extra+"\n"), extra)
	if bytes.Equal(with, d.file) {
		return with, good, refused, nil
	}
	if wrong = d.test(ctx, with); wrong == nil {
		return with, good, refused, atomicfile.Write(d.path(fileExtra), extra, secret)
	}
	d.extra = fmt.Errorf("%s: %w", d.cfg.Extra, wrong)
	// As they were when they were last good; else without.
	if last, err := os.ReadFile(d.path(fileExtra)); err == nil {
		with = slices.Concat(own, []byte("\n# The user's own sections, as they last passed the test\n"), last)
		if bytes.Equal(with, d.file) || d.test(ctx, with) == nil {
			return with, good, refused, nil
		}
	}
	return own, good, refused, nil
}

// sift finds the instances that keepalived accepts together. Its answers are cached for a while.
func (d *Daemon) sift(ctx context.Context, own []byte, instances []Instance) (good []Instance, refused map[string]error, err error) {
	if s := d.sifted; bytes.Equal(s.of, own) && (len(s.refused) == 0 || time.Since(s.at) < retest) {
		return s.good, s.refused, nil
	}
	refused = map[string]error{}
	if good, err = d.split(ctx, instances, refused); err != nil {
		return nil, nil, err
	}
	d.sifted = sifted{of: own, at: time.Now(), good: good, refused: refused}
	return good, refused, nil
}

// split halves instances until those that are refused are found: about 2 log n tests for each.
func (d *Daemon) split(ctx context.Context, instances []Instance, refused map[string]error) ([]Instance, error) {
	if len(instances) == 0 {
		return nil, nil
	}
	wrong := d.test(ctx, render(d.cfg, instances))
	switch {
	case wrong == nil:
		return instances, nil
	case !errors.Is(wrong, errRefused):
		return nil, wrong
	case len(instances) == 1:
		refused[instances[0].Name] = wrong
		return nil, nil
	}
	half := len(instances) / 2
	a, err := d.split(ctx, instances[:half], refused)
	if err != nil {
		return nil, err
	}
	b, err := d.split(ctx, instances[half:], refused)
	if err != nil || len(a) == 0 || len(b) == 0 {
		return slices.Concat(a, b), err
	}
	good := slices.Concat(a, b)
	if len(good) < len(instances) && d.test(ctx, render(d.cfg, good)) == nil {
		return good, nil
	}
	// Each is right by itself: only together are they refused.
	good = a
	for _, i := range b {
		more := append(slices.Clone(good), i)
		if wrong := d.test(ctx, render(d.cfg, more)); wrong == nil {
			good = more
		} else {
			refused[i.Name] = wrong
		}
	}
	return good, nil
}

// errRefused means that keepalived itself has refused the configuration.
var errRefused = errors.New("keepalived refuses the configuration")

// test has keepalived validate a configuration, in its network namespace: a reload of a bad one is
// dangerous (VRID out of range or a missing interface: the daemon ends and leaves its addresses
// behind; syntax errors: it drops all).
func (d *Daemon) test(ctx context.Context, conf []byte) error {
	path := d.path(fileTest)
	if err := atomicfile.Write(path, conf, secret); err != nil {
		return err
	}
	defer os.Remove(path)
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.cfg.Program, "-t", "-f", path).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("testing keepalived's configuration: %w", context.Cause(ctx))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("there is no %s on this device (apt-get install keepalived): %w", d.cfg.Program, err)
	}
	if !errors.As(err, new(*exec.ExitError)) {
		return fmt.Errorf("testing keepalived's configuration: %w", err)
	}
	return fmt.Errorf("%w: %w: %s", errRefused, err, complaint(out, path))
}

// complaint returns keepalived's messages, without those that it always prints.
func complaint(out []byte, path string) string {
	var words []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(strings.ReplaceAll(line, path, "line"))
		if line != "" && !strings.Contains(line, "SECURITY VIOLATION") {
			words = append(words, line)
		}
	}
	if len(words) > 5 {
		words = words[:5]
	}
	return strings.Join(words, "; ")
}

// render writes the configuration. Instances are in order, so that the same ones give the
// same file.
func render(cfg Config, instances []Instance) []byte {
	var b bytes.Buffer
	// script_user comes first: with vrrp_notify_fifo before it keepalived 2.2.7 may crash on a
	// reload. A change of global_defs means a restart to be safe, so they depend only on the
	// directory.
	//
	// After two parts of a LAN have joined, a loser that receives the winner's advertisement before
	// its own was received would stop advertising at once, and the winner would never learn that
	// switches and clients have the loser's hardware address. So a loser sends one more
	// advertisement (vrrp_higher_prio_send_advert), and a node that receives a lower priority
	// announces its addresses, at once and 1 s later.
	//
	// A process that other programs keep from running for three intervals loses its addresses
	// although the node is healthy: the least nice one is scheduled first (vrrp_priority, see
	// setpriority(2)).
	fmt.Fprintf(&b, `# Made by edgecore. Your own sections belong into %s.
global_defs {
    script_user root
    router_id skerry
    vrrp_version 3
    vrrp_priority -20
    vrrp_garp_master_refresh 60
    vrrp_garp_master_repeat 3
    vrrp_garp_lower_prio_delay 1
    vrrp_garp_lower_prio_repeat 3
    vrrp_higher_prio_send_advert true
    vrrp_notify_fifo %s
    reload_check_config %s
}
`, orNone(cfg.Extra), filepath.Join(cfg.Dir, fileFIFO), filepath.Join(cfg.Dir, fileCheck))
	for _, i := range instances {
		i.render(&b, filepath.Join(cfg.Dir, dirReady, i.Name))
	}
	return b.Bytes()
}

func (i Instance) render(b *bytes.Buffer, ready string) {
	track := "ready_" + i.Name
	fmt.Fprintf(b, `
track_file %s {
    file %s
    weight 0
}
vrrp_instance %s {
    state BACKUP
    interface %s
    virtual_router_id %d
    priority %d
    advert_int %s
`, track, ready, i.Name, i.Interface, i.VRID, i.Priority, strconv.FormatFloat(i.Advert.Seconds(), 'f', -1, 64))
	if !i.Preempt {
		b.WriteString("    nopreempt\n")
	}
	if len(i.Unicast.Peers) > 0 {
		fmt.Fprintf(b, "    unicast_src_ip %s\n    unicast_peer {\n", i.Unicast.Source)
		for _, p := range i.Unicast.Peers {
			fmt.Fprintf(b, "        %s\n", p)
		}
		b.WriteString("    }\n")
	}
	fmt.Fprintf(b, `    track_file {
        %s
    }
    virtual_ipaddress {
        %s dev %s
    }
`, track, whole(i.Address), i.Interface)
	if len(i.More) > 0 {
		b.WriteString("    virtual_ipaddress_excluded {\n")
		for _, a := range i.More {
			fmt.Fprintf(b, "        %s dev %s\n", whole(a), i.Interface)
		}
		b.WriteString("    }\n")
	}
	b.WriteString("}\n")
}

func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func orNone(s string) string {
	if s == "" {
		return "another keepalived"
	}
	return s
}
