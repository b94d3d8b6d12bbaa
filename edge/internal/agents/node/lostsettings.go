package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// SettingsLost is the condition of a Node that was deleted and registered again, without labels or
// taints that only an administrator can set.
const SettingsLost corev1.NodeConditionType = "SkerryNodeSettingsLost"

// settingsPoll is the interval of checks for missing settings; they are cheap.
const settingsPoll = 5 * time.Second

// LostSettingsModule sets the condition SettingsLost.
type LostSettingsModule struct {
	poller
	events func(ctx context.Context) (agent.Recorder, error)
}

// NewLostSettingsModule returns the module for the Node of that name. problem describes the missing
// settings, "" if there are none; client is of the edge API.
func NewLostSettingsModule(problem func() string, node string, client *rest.Config, events func(ctx context.Context) (agent.Recorder, error)) *LostSettingsModule {
	good := corev1.NodeCondition{Type: SettingsLost, Reason: "Complete", Message: "the Node has what it had"}
	return &LostSettingsModule{poller{settingsPoll, func(context.Context) (reason, message string) {
		return "NodeDeleted", problem()
	}, good, node, client}, events}
}

// Name implements beehive.Module.
func (*LostSettingsModule) Name() message.Name { return "lostsettings" }

// Run implements beehive.Module.
func (m *LostSettingsModule) Run(ctx context.Context, port *beehive.Port) error {
	recorder, err := m.events(ctx)
	if err != nil {
		return fmt.Errorf("opening the recorder of events: %w", err)
	}
	defer func() { _ = recorder.Close(context.WithoutCancel(ctx)) }() // an event that can't be written is no reason to fail
	return m.run(ctx, port, func(before, problem string) {
		if problem != "" && before == "" {
			recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: m.node, UID: types.UID(m.node)}, corev1.EventTypeWarning, "NodeSettingsLost", problem)
		}
	})
}
