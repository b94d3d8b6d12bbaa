package agent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// A panic of an agent is handled like an error: it is called again, and the kubelet in the same
// process is not affected.
func TestClaims_12_PanicOfAnAgentIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		m := agent.New(agent.Config{Name: "counter", NodeName: "edge1", API: agenttest.NewAPI().Config(), Start: func(context.Context, *agent.Run) (agent.Sync, error) {
			return func(context.Context) (time.Duration, error) {
				if calls.Add(1) == 1 {
					panic("a defect")
				}
				return 0, nil
			}, nil
		}})
		beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.Never()})
		time.Sleep(time.Minute)
		if n := calls.Load(); n < 2 || m.State().Problem != "" {
			t.Errorf("%d calls, and the agent says %q", n, m.State().Problem)
		}
	})
}
