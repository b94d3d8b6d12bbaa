package keepalived

import (
	"net/netip"
	"path/filepath"
	"sync"
	"time"
)

// Config has the paths.
type Config struct {
	// Dir has all files; it should be on a file system of memory, such as /run/skerry/keepalived.
	Dir string
	// Extra is a file with the user's own sections of keepalived.conf(5), which may be missing; ""
	// disables it. It must not contain global_defs.
	Extra string
	// Program is keepalived; default: found in PATH.
	Program string
}

// Instance is one election.
type Instance struct {
	Name      string // letters, digits, dots, dashes and underscores; unique
	Interface string
	VRID      uint8
	Priority  uint8 // 1 to 254
	Advert    time.Duration
	Preempt   bool // take the address back from a lower priority
	Address   netip.Addr
	// More are addresses that go with Address. Advertisements don't name them, so nodes that learn
	// of one at different times still understand each other.
	More []netip.Addr
	// Unicast, where it has peers, replaces multicast.
	Unicast Unicast
}

// Unicast has the peers that advertisements are sent to, and their source address.
type Unicast struct {
	Source netip.Addr
	Peers  []netip.Addr
}

func (i Instance) addresses() []netip.Addr { return append([]netip.Addr{i.Address}, i.More...) }

// State is this node's role in an election.
type State string

// Daemon is a supervised keepalived.
type Daemon struct {
	// Set by New, never changed.
	cfg     Config
	wake    chan struct{} // there was a change
	changed chan struct{} // a state changed

	mu      sync.Mutex // held over a whole Apply
	applied bool       // Apply has worked once: before, a keepalived of an earlier run is left alone
	wanted  bool
	file    []byte // the configuration on disk
	proc    *process
	extra   error // why the user's sections are not as they are in the file
	sifted  sifted

	statesMu sync.Mutex
	names    map[string][]netip.Addr
	problems map[string]error
	states   map[string]State
	restarts uint64
}

// New makes a Daemon. It starts no process and touches no file.
func New(cfg Config) *Daemon {
	if cfg.Program == "" {
		cfg.Program = "keepalived"
	}
	return &Daemon{cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), names: map[string][]netip.Addr{}, states: map[string]State{}}
}

func (d *Daemon) path(name string) string { return filepath.Join(d.cfg.Dir, name) }

// Names of files in Config.Dir.
const (
	fileConfig = "keepalived.conf"
	fileTest   = "test.conf"
	fileExtra  = "extra.conf"
	filePID    = "keepalived.pid"
	fileVRRP   = "vrrp.pid"
	fileFIFO   = "notify"
	fileCheck  = "check.log"
	fileOwned  = "owned"
	dirReady   = "ready"
)

// secret is the mode of files that hold the user's sections: these may have an auth_pass.
const secret = 0o600

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sifted caches keepalived's answer on instances of which it refused some, so that it is not asked
// again at each Apply.
type sifted struct {
	of      []byte // the instances as they would be written
	at      time.Time
	good    []Instance
	refused map[string]error
}

// process is a keepalived: a child, or one that an earlier run of edgecore has started.
type process struct {
	pid   int
	fd    int // pidfd: never another process by the same number (pidfd_open(2))
	since time.Time
	done  chan struct{} // closed when it has ended
}

const (
	// grace is the time for keepalived to end by itself: it notifies the others (0.5 s) and removes
	// its addresses.
	grace      = 5 * time.Second
	backoffMin = 500 * time.Millisecond
	backoffMax = 30 * time.Second
	// sweepEvery is how often addresses are looked for that should be gone.
	sweepEvery = 2 * time.Second
	// testTimeout bounds keepalived's own test of a configuration.
	testTimeout = 20 * time.Second
)

// The states, as keepalived names them. Unknown: no word from keepalived yet.
const (
	Unknown State = ""
	Master  State = "MASTER"
	Backup  State = "BACKUP"
	Fault   State = "FAULT"
	Stop    State = "STOP"
)
