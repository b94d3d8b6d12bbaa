package route

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Off makes the agent of a device on which the module is switched off. It calls clear, which
// removes the routes that an earlier run has left in the kernel, and withdraws that run's reports:
// otherwise a deleted StaticRoute would wait for this node forever.
func Off(node string, state agent.Memory, reporter agent.Reporter, clear func(ctx context.Context) error) *agent.Module {
	kit := agent.Config{Name: Name, NodeName: node, Reporter: reporter}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		return func(ctx context.Context) (time.Duration, error) {
			if err := clear(ctx); err != nil {
				return 0, err // the reports are still true
			}
			return 0, takeBack(ctx, state, r.Reports)
		}, nil
	}
	return agent.New(kit)
}

// takeBack withdraws all entries, and drops those whose withdrawal is in the outbox. The common
// record stays: it is of the device, for the next run.
func takeBack(ctx context.Context, state agent.Memory, reports *agent.Reports) error {
	kept, err := state.Load()
	if err != nil {
		return err
	}
	gone := map[string][]byte{}
	for name, raw := range kept {
		if name == commonKey || len(raw) == 0 {
			continue
		}
		gone[name] = nil
		var one record
		if json.Unmarshal(raw, &one) == nil { // else there is no telling of which object it was
			reports.Withdraw(ref(name), one.UID)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	failed := reports.Flush(ctx)
	maps.DeleteFunc(gone, func(name string, _ []byte) bool { return !reports.Sent(ref(name)) })
	return errors.Join(failed, state.Save(ctx, gone))
}
