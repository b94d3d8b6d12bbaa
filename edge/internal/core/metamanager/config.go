package metamanager

import (
	"cmp"
	"context"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Name is metamanager's address on the bus.
const Name message.Name = "metamanager"

// Config configures the Manager.
type Config struct {
	NodeName string
	Store    *store.Store
	// ReportEvents sends events to the cloud too; without it they stay in the ring.
	ReportEvents bool
	// Hub is the module that has the link; default "edgehub".
	Hub    message.Name
	Limits Limits
	// Corrector, if set, changes how objects are presented.
	Corrector object.Corrector
	// Gate decides which pods the kubelet is shown.
	Gate podgate.Gate
	// PodsConfirmed, when it is not nil, is called when the cloud has delivered, or found right,
	// the whole set of this device's pods in a session. It must be quick.
	PodsConfirmed func()
	// At, when it is not nil, is called when a Point is reached, by the goroutine that
	// reaches it. For tests.
	At func(Point)
}

// Limits bound the device's resource usage. A zero value is the default.
type Limits struct {
	Interests      int           // sets that can be held; default 4,096. At the bound a new one is refused with 429
	InterestIdle   time.Duration // linked time after which a set without a watch is dropped; default 10 min
	SyncWait       time.Duration // how long a list or watch waits for its set; default 30 s, then 503
	RingEvents     int           // events kept for the edge API; default 1,000, the oldest go first
	RingBytes      int           // default 1 MiB
	OutboxEvents   int           // events that wait for the cloud; default 10,000, the oldest go first and are counted
	OutboxBytes    int           // of those; default 16 MiB
	ObjectEntries  int           // writes that can wait for one object and can't be merged; default 16, then 429
	Window         int           // writes under way to the cloud; default 64
	EventWindow    int           // of those, at most this many events; default 48
	HistoryChanges int           // changes of a resource that a watch can start from; default 256
	HistoryBytes   int           // of those; default 256 KiB
	WatchQueue     int           // events that wait for a slow watcher; default 1,024, then it gets 410
	Answers        int           // kept tokens; default 1,024, the oldest go first
	SettleWait     time.Duration // how long a proxied write waits until its object is delivered; default 1 s, then it is answered regardless
	RequestTimeout time.Duration // for proxied requests without a deadline; default 60 s
}

func (l Limits) view() view.Limits {
	return view.Limits{
		Interests: l.Interests, InterestIdle: l.InterestIdle, SyncWait: l.SyncWait,
		HistoryChanges: l.HistoryChanges, HistoryBytes: l.HistoryBytes, WatchQueue: l.WatchQueue,
	}
}

func (l Limits) outbox() outbox.Limits {
	return outbox.Limits{Events: l.OutboxEvents, EventBytes: l.OutboxBytes, Window: l.Window, EventWindow: l.EventWindow}
}

func or[T comparable](v *T, def T) {
	*v = cmp.Or(*v, def)
}

func (c *Config) setDefaults() {
	or(&c.Hub, "edgehub")
	l := &c.Limits
	or(&l.Interests, 4096)
	or(&l.InterestIdle, 10*time.Minute)
	or(&l.SyncWait, 30*time.Second)
	or(&l.RingEvents, 1000)
	or(&l.RingBytes, 1<<20)
	or(&l.OutboxEvents, 10_000)
	or(&l.OutboxBytes, 16<<20)
	or(&l.ObjectEntries, 16)
	or(&l.Window, 64)
	or(&l.EventWindow, 48)
	or(&l.HistoryChanges, 256)
	or(&l.HistoryBytes, 256<<10)
	or(&l.WatchQueue, 1024)
	or(&l.Answers, 1024)
	or(&l.SettleWait, time.Second)
	or(&l.RequestTimeout, time.Minute)
}

// port is the subset that the Manager uses of its *beehive.Port.
type port interface {
	Send(ctx context.Context, to message.Name, m message.Message) error
	SendSync(ctx context.Context, to message.Name, m message.Message) (message.Message, error)
	Receive(ctx context.Context) (message.Message, error)
	Ready()
}
