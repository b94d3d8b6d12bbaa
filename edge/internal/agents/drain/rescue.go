package drain

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Rescue is the way to a cloud that has no version of the link's protocol in common with this
// device: NodeOperations of type Upgrade come down, and the device's reports of them go up.
type Rescue interface {
	// Open reports whether there is such a session.
	Open() bool
	// Changed gets a value whenever Open may have changed.
	Changed() <-chan struct{}
	// Operations returns all upgrades of this node.
	Operations(ctx context.Context) ([]v1alpha1.NodeOperation, error)
	// Report writes the status of an operation.
	Report(ctx context.Context, name string, uid types.UID, status []byte) error
}

// rescueEvery is the interval of requests: the cloud sends no changes.
const rescueEvery = 15 * time.Second
