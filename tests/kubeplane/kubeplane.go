// Package kubeplane runs a whole Kubernetes control plane in one process: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, all of them upstream and unchanged. It serves
// trials and tests.
//
// It owns one directory: the keys and certificates, etcd's data and the kubeconfigs in it. Stored
// objects are there again after a restart, also after a SIGKILL. It refuses to share that directory
// with a second process, and it is not for production: one etcd member, one replica of everything.
//
// Concurrency: Run is called once in a process. The components register metrics, feature gates and
// flags in global registries of Kubernetes, so a second control plane needs a second process.
package kubeplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config sets the directory and the addresses of a control plane.
type Config struct {
	// Dir holds everything that outlives the process.
	Dir string
	// Bind is the address kube-apiserver listens on.
	Bind netip.Addr
	// Advertise is the address others dial; it stands in the kubeconfigs.
	Advertise netip.Addr
	// Port is kube-apiserver's; 0 picks a free one.
	Port uint16
	// EtcdPort is etcd's client port on loopback; 0 picks a free one.
	EtcdPort uint16
	// SANs are further names and addresses in kube-apiserver's serving certificate.
	SANs []string
	// ServiceCIDR is the range for Services. Ranges for pods are not given out: on edge nodes the
	// CNI configuration of the device decides.
	ServiceCIDR netip.Prefix
	// SecondServiceCIDR is the range of the other family, for Services that ask for both.
	SecondServiceCIDR netip.Prefix
	// Quick makes node failures visible within some 12 s and evictions start 10 s later, instead of
	// Kubernetes' 50 s and 5 min.
	Quick bool
	// Audit, when set, is a file that gets one line of JSON for each request, without bodies.
	Audit string
	// EgressSelector, when set, is an EgressSelectorConfiguration: how kube-apiserver reaches
	// nodes it can't dial.
	EgressSelector string
	// EgressListen and EgressTo make a balancer for that: connections to the address go to the
	// first of the others that answers, from a random start. A cluster has a Service for it.
	EgressListen string
	EgressTo     []string
	// Fsync makes etcd's writes survive a power failure. Without it they survive a SIGKILL, and
	// tests are faster.
	Fsync bool
	// Owner, when set, is a process: with it this one ends, at once, and removes Dir. Until then
	// Dir/ResetSocket resets the control plane to its state when it became ready, so that one test
	// after the other finds it as new.
	Owner int
	// Idle, with Owner, is how long this one waits for the next borrower before it ends. At rest it
	// takes as much of a processor in two minutes as in a start.
	Idle time.Duration
	// Further flags for a component, in its own spelling; they win over ours.
	APIServerArgs, ControllerArgs, SchedulerArgs []string
}

// Default is a control plane on loopback.
func Default() Config {
	return Config{
		Dir:         "/var/lib/skerry/kubeplane",
		Bind:        netip.MustParseAddr("0.0.0.0"),
		Advertise:   netip.MustParseAddr("127.0.0.1"),
		Port:        6443,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), SecondServiceCIDR: netip.MustParsePrefix("fd00:96::/112"),
		Idle: 2 * time.Minute,
	}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("--dir: must be set"))
	}
	if !c.Bind.IsValid() {
		errs = append(errs, errors.New("--bind: must be an IP address"))
	}
	if !c.Advertise.IsValid() || c.Advertise.IsUnspecified() {
		errs = append(errs, errors.New("--advertise: must be an address that clients can dial"))
	}
	if p := c.ServiceCIDR; !p.IsValid() || p != p.Masked() {
		errs = append(errs, fmt.Errorf("--service-cidr: %v is not a network like 10.96.0.0/16", p))
	}
	if c.EgressSelector != "" {
		if _, err := os.Stat(c.EgressSelector); err != nil {
			errs = append(errs, fmt.Errorf("--egress-selector: %w", err))
		}
	}
	if (c.EgressListen == "") != (len(c.EgressTo) == 0) {
		errs = append(errs, errors.New("--egress-listen and --egress-to: one is of no use without the other"))
	}
	return errors.Join(errs...)
}

// Ready is the content of DIR/ready.json once everything serves; the file is absent at any other
// time.
type Ready struct {
	PID        int    `json:"pid"`
	Server     string `json:"server"`
	Etcd       string `json:"etcd"`
	Kubeconfig string `json:"kubeconfig"`
}

// ReadyFile is the name of the file, in Config.Dir, that appears when the control plane is ready.
const ReadyFile = "ready.json"

// Run starts the control plane, writes one line for each step to out, and serves until ctx
// ends. It then stops the components in reverse order and returns nil. A component that ends by
// itself is an error.
func Run(ctx context.Context, cfg Config, out io.Writer) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	if cfg.Owner != 0 {
		if err := endWith(cfg.Owner, cfg.Dir); err != nil {
			return err
		}
	}
	unlock, err := lock(filepath.Join(cfg.Dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	readyFile := filepath.Join(cfg.Dir, ReadyFile)
	if err := os.Remove(readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing an old ready file: %w", err)
	}

	listener, err := listen(cfg.Bind, cfg.Port)
	if err != nil {
		return err
	}
	p := &plane{cfg: cfg, out: out, start: time.Now(), listener: listener, failed: make(chan error, 4)}
	p.port = uint16(listener.Addr().(*net.TCPAddr).Port)
	p.server = "https://" + net.JoinHostPort(cfg.Advertise.String(), strconv.Itoa(int(p.port)))
	defer listener.Close()

	if p.keys, err = openKeys(filepath.Join(cfg.Dir, "pki"), p.sans()); err != nil {
		return err
	}
	admin := filepath.Join(cfg.Dir, "admin.kubeconfig")
	if err := p.keys.kubeconfig(identityAdmin, p.server, admin); err != nil {
		return err
	}
	p.step("keys and certificates in " + p.keys.dir)

	err = p.run(ctx, func() error {
		raw, err := json.Marshal(Ready{PID: os.Getpid(), Server: p.server, Etcd: p.etcdURL, Kubeconfig: admin})
		if err != nil {
			return err
		}
		// Renamed into place so that a reader never sees half of it.
		if err := os.WriteFile(readyFile+".new", raw, 0o600); err != nil {
			return fmt.Errorf("writing the ready file: %w", err)
		}
		if err := os.Rename(readyFile+".new", readyFile); err != nil {
			return fmt.Errorf("writing the ready file: %w", err)
		}
		p.step("ready: KUBECONFIG=" + admin + " kubectl get namespaces")
		return nil
	})
	if rmErr := os.Remove(readyFile); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	p.step("stopped")
	return err
}

// sans lists all names kube-apiserver is known by.
func (p *plane) sans() []string {
	// The first address of the service range is the Service "kubernetes", which pods use.
	service := p.cfg.ServiceCIDR.Addr().Next().String()
	return append([]string{
		"localhost", "127.0.0.1", "::1", service, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		p.cfg.Advertise.String(),
	}, p.cfg.SANs...)
}

// listen takes the port before anything else is started, so that a busy one is one clear line.
func listen(bind netip.Addr, port uint16) (net.Listener, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(bind, port).String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d on %s is in use by another process: stop it (ss -ltnp 'sport = :%d' names it) or choose another --port", port, bind, port)
	}
	if err != nil {
		return nil, fmt.Errorf("listening for kube-apiserver: %w", err)
	}
	return l, nil
}

// lock keeps a second process out of the directory: two etcds on one file would wait for each other
// without a word. The kernel drops the lock when we die.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, fmt.Errorf("%s is in use by process %s: stop it or choose another --dir", filepath.Dir(path), strings.TrimSpace(string(holder)))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing the lock: %w", err)
	}
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}
