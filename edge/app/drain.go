package app

import (
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/hook"
)

// hookDir, in the data directory, has the records of hooks that outlive edgecore.
const hookDir = "hook"

// newDrain makes the agent of operations; works makes the executor of upgrades, configurations and
// image pulls.
func newDrain(b *base, core *coreWing, vips *vip.Agent, rescue *rescue, works func(cloud *rest.Config) (*upgrade.Works, error)) (*drain.Agent, *drain.Module, error) {
	c := b.config.Modules.Drain
	cloud := drain.Through(core.meta)
	worker, err := drain.NewWorker(drain.WorkerConfig{
		NodeName: b.node, API: cloud, EvictDelay: c.EvictInterval.Duration,
	})
	if err != nil {
		return nil, nil, err
	}
	config := drain.Config{
		NodeName: b.node, Boot: bootID(), Node: worker, Store: b.memory(drain.Name),
		Hooks: hook.New(hook.Config{
			Dir: filepath.Join(b.config.DataDir, hookDir), Boot: bootID(), Timeout: c.Hooks.Timeout.Duration,
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
		if config.Works, err = works(cloud); err != nil {
			return nil, nil, err
		}
	}
	if vips != nil {
		config.Handover, config.Handback = vips.HandOver, vips.TakePart
	}
	operations := drain.New(config)
	return operations, drain.NewModule(operations, drain.ModuleConfig{
		Edge: core.client(), Cloud: cloud, Reporter: core.meta, Rescue: rescue, Events: core.recorder(drain.Name),
	}), nil
}
