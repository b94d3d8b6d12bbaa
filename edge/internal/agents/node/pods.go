package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// PodsNotRunning is the condition of a Node some of whose pods do not run, and will not by
// themselves soon.
const PodsNotRunning corev1.NodeConditionType = "SkerryPodsNotRunning"

// podsPoll is the interval of reading the device's pods and asking the container runtime one
// question.
const podsPoll = 20 * time.Second

// PodsModule sets the condition PodsNotRunning.
type PodsModule struct{ poller }

// NewPodsModule returns the module for the Node of that name. problem gives the reason pods do not
// run, "" where all do; client is of the edge API.
func NewPodsModule(problem func(ctx context.Context) (reason, message string), node string, client *rest.Config) *PodsModule {
	good := corev1.NodeCondition{Type: PodsNotRunning, Reason: "PodsRunning", Message: "the pods of this device run"}
	return &PodsModule{poller{podsPoll, problem, good, node, client}}
}

// Name implements beehive.Module.
func (*PodsModule) Name() message.Name { return "podcondition" }

// Run implements beehive.Module.
func (m *PodsModule) Run(ctx context.Context, port *beehive.Port) error {
	return m.run(ctx, port, nil)
}
