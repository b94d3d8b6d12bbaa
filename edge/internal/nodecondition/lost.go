package nodecondition

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agent"
)

// SettingsLost is the condition of a Node that was deleted and registered again, without labels or
// taints that only an administrator can set.
const SettingsLost corev1.NodeConditionType = "SkerryNodeSettingsLost"

// settingsPoll is how often it is looked what is missing: it costs nothing.
const settingsPoll = 5 * time.Second

// LostSettingsModule sets the condition SettingsLost.
type LostSettingsModule struct {
	problem func() string
	node    string
	client  *rest.Config
	events  func(ctx context.Context) (agent.Recorder, error)
}

// NewLostSettingsModule returns the module for the Node of that name. problem says what is missing,
// "" for nothing; client is of the edge API.
func NewLostSettingsModule(problem func() string, node string, client *rest.Config, events func(ctx context.Context) (agent.Recorder, error)) *LostSettingsModule {
	return &LostSettingsModule{problem, node, client, events}
}

// Name implements beehive.Module.
func (*LostSettingsModule) Name() message.Name { return "lostsettings" }

// Run looks until ctx ends. The condition is written when it changes, the first time only
// where it is bad.
func (m *LostSettingsModule) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.client)
	if err != nil {
		return fmt.Errorf("making the client for the Node's condition: %w", err)
	}
	recorder, err := m.events(ctx)
	if err != nil {
		return fmt.Errorf("opening the recorder of events: %w", err)
	}
	defer func() { _ = recorder.Close(context.WithoutCancel(ctx)) }() // an event that can't be written is no reason to fail
	port.Ready()
	tick := time.NewTicker(settingsPoll)
	defer tick.Stop()
	said, known := "", false
	for {
		if problem := m.problem(); problem != said || !known {
			want := corev1.NodeCondition{Type: SettingsLost, Status: corev1.ConditionFalse, Reason: "Complete", Message: "the Node has what it had"}
			if problem != "" {
				want.Status, want.Reason, want.Message = corev1.ConditionTrue, "NodeDeleted", problem
			}
			if known = set(ctx, client, m.node, want) == nil; known {
				if problem != "" && said == "" {
					recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: m.node, UID: types.UID(m.node)}, corev1.EventTypeWarning, "NodeSettingsLost", problem)
				}
				said = problem
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
