package nodecondition

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// PodsNotRunning is the condition of a Node some of whose pods do not run, and will not by
// themselves soon.
const PodsNotRunning corev1.NodeConditionType = "SkerryPodsNotRunning"

// podsPoll is how often it is looked: a look reads the device's pods, and asks the container
// runtime one question.
const podsPoll = 20 * time.Second

// PodsModule sets the condition PodsNotRunning.
type PodsModule struct {
	problem func(ctx context.Context) (reason, message string)
	node    string
	client  *rest.Config
}

// NewPodsModule returns the module for the Node of that name. problem gives the reason pods do not
// run, "" where all do; client is of the edge API.
func NewPodsModule(problem func(ctx context.Context) (reason, message string), node string, client *rest.Config) *PodsModule {
	return &PodsModule{problem, node, client}
}

// Name implements beehive.Module.
func (*PodsModule) Name() message.Name { return "podcondition" }

// Run looks until ctx ends. The condition is written when it changes, the first time only
// where it is bad.
func (m *PodsModule) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.client)
	if err != nil {
		return fmt.Errorf("making the client for the Node's condition: %w", err)
	}
	port.Ready()
	tick := time.NewTicker(podsPoll)
	defer tick.Stop()
	said, known := "", false
	for {
		reason, problem := m.problem(ctx)
		if problem != said || !known {
			want := corev1.NodeCondition{Type: PodsNotRunning, Status: corev1.ConditionFalse, Reason: "PodsRunning", Message: "the pods of this device run"}
			if problem != "" {
				want.Status, want.Reason, want.Message = corev1.ConditionTrue, reason, problem
			}
			if known = set(ctx, client, m.node, want) == nil; known {
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
