package app

import (
	"path/filepath"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/hook"
)

// hookDir, in the data directory, has the records of hooks that outlive edgecore.
const hookDir = "hook"

func (a *App) drainParts() ([]beehive.Entry, error) {
	module, err := a.newDrain()
	if err != nil {
		return nil, err
	}
	a.collectors = append(a.collectors, a.drain)
	return []beehive.Entry{slow(restarted(module, linkstate.Agents), 20*time.Second)}, nil
}

func (a *App) newDrain() (*drain.Module, error) {
	c := a.config.Modules.Drain
	cloud := drain.Through(a.meta)
	worker, err := drain.NewWorker(drain.WorkerConfig{
		NodeName: a.node, API: cloud, EvictDelay: c.EvictInterval.Duration,
	})
	if err != nil {
		return nil, err
	}
	config := drain.Config{
		NodeName: a.node, Boot: bootID(), Node: worker, Store: agent.NewMemory(a.store, string(drain.Name)),
		Hooks: hook.New(hook.Config{
			Dir: filepath.Join(a.config.DataDir, hookDir), Boot: bootID(), Timeout: c.Hooks.Timeout.Duration,
			Commands: map[string]string{
				string(v1alpha1.OperationReboot): c.Hooks.Reboot, string(v1alpha1.OperationShutdown): c.Hooks.Shutdown,
				string(v1alpha1.OperationImageUpdate): c.Hooks.Update, drain.PrefetchHook: c.Hooks.Prefetch,
			},
		}),
		Rules: drain.Rules{
			Off: !c.Evict, Attempts: c.Attempts, Interval: c.Interval.Duration, Timeout: c.Timeout.Duration,
			ProceedAfter: c.ProceedAfter.Duration, RetryInterval: c.RetryInterval.Duration, Prefetch: c.Hooks.Prefetch != "",
		},
	}
	if _, ok := launch.FromEnvironment(); ok { // no other edgecore can be tried, and taken back
		if config.Works, err = a.newWorks(cloud); err != nil {
			return nil, err
		}
	}
	if a.vips != nil {
		config.Handover, config.Handback = a.vips.HandOver, a.vips.TakePart
	}
	a.drain = drain.New(config)
	module := drain.NewModule(a.drain, drain.ModuleConfig{
		Edge: a.api.ClientConfig(edgeapi.Identity{}), Cloud: cloud, Reporter: a.meta, Rescue: a.rescue, Events: a.recorder(string(drain.Name)),
	})
	a.agent(module.Module)
	return module, nil
}
