// Package history detects that the cluster was restored from a backup since this device reported to
// it, and repeats all reports.
//
// cloudcore names the history in each Welcome. Another name than the stored one means that the
// cluster may have gone back in time, and that reports of objects are lost. It owns the name,
// stored once all repeated reports are in the outbox: a process that ends before that repeats them
// again. It does not judge which reports were lost. Sync runs on one goroutine.
package history

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Name is the module's, and that of its part of the store.
const Name message.Name = "history"

const (
	nameKey = "name"
	// lookAgain is the interval of checking whether all is in the outbox.
	lookAgain = 2 * time.Second
)

// Config configures the agent.
type Config struct {
	NodeName string
	Memory   agent.Memory
	// Repeat repeats all reports, Settled reports whether they are in the outbox.
	Repeat  func()
	Settled func() bool
}

// restored is the name of no cluster's history.
const restored = "restored from a backup of the device"

// Forget has everything reported again with the next link, whatever the cluster's history is: the
// store was restored.
func Forget(tx interface {
	SetState(module, key string, state []byte) error
}) error {
	return tx.SetState(string(Name), nameKey, []byte(restored))
}

// New makes the agent.
func New(c Config) *agent.Module {
	return agent.New(agent.Config{
		Name: Name, NodeName: c.NodeName,
		Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			kept, err := c.Memory.Load()
			if err != nil {
				return nil, err
			}
			k := &keeper{config: c, kept: string(kept[nameKey])}
			return func(ctx context.Context) (time.Duration, error) {
				link := r.Link()
				if !link.Up {
					return 0, nil
				}
				return k.linked(ctx, link.Link.History)
			}, nil
		},
	})
}

// keeper is one run.
type keeper struct {
	config    Config
	kept      string
	repeating string // the history for which all is being reported again
}

// linked compares the name of the cloud's history with the stored one.
func (k *keeper) linked(ctx context.Context, name string) (again time.Duration, err error) {
	switch {
	case name == "" || name == k.kept:
		return 0, nil
	case k.kept == "": // the first link: no other cloud has reports
	case k.repeating != name:
		klog.FromContext(ctx).Info("Reporting everything again: the cluster may have lost earlier reports", "history", name, "before", k.kept)
		k.repeating = name
		k.config.Repeat()
		return lookAgain, nil
	case !k.config.Settled():
		return lookAgain, nil
	}
	if err := k.config.Memory.Save(ctx, map[string][]byte{nameKey: []byte(name)}); err != nil {
		return 0, err
	}
	k.kept, k.repeating = name, ""
	return 0, nil
}
