package edgehub

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Name is the module's address on the bus.
const Name message.Name = "edgehub"

// ErrBusy is the answer to a request while too many wait for the cloud.
var ErrBusy = errors.New("too many requests wait for the cloud")

// Port is the subset of beehive.Port that a Hub uses.
type Port interface {
	Send(ctx context.Context, to message.Name, m message.Message) error
	SendToGroup(ctx context.Context, to message.Group, m message.Message) error
	Receive(ctx context.Context) (message.Message, error)
	Reply(ctx context.Context, request message.Message, content any) error
	Answer(m message.Message) error
	Ready()
}

var _ Port = (*beehive.Port)(nil)

// setState tells the agents whether there is a session. The bus keeps it for those that start
// later.
func setState(ctx context.Context, port Port, state linkstate.State) {
	err := port.SendToGroup(ctx, linkstate.Agents, linkstate.Current.New(message.Resource{}, state))
	if err != nil && ctx.Err() == nil && !errors.Is(err, beehive.ErrNoGroup) {
		klog.FromContext(ctx).Error(err, "Failed to send the link's state to the agents")
	}
}

// refuse answers a request with an error.
func refuse(ctx context.Context, port Port, request message.Message, refusal error) {
	if err := port.Reply(ctx, request, refusal); err != nil {
		klog.FromContext(ctx).V(4).Info("Dropped an error response: the request has ended", "topic", request.Key(), "err", err)
	}
}
