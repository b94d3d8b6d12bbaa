package agenttest

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Outbox takes reports, or refuses them while Refuse is set.
type Outbox struct {
	mu      sync.Mutex
	refusal error
	reports []Report
}

// Refuse makes the outbox answer with err; nil ends that.
func (o *Outbox) Refuse(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refusal = err
}

// Report implements agent.Reporter.
func (o *Outbox) Report(_ context.Context, ref object.Ref, uid types.UID, body []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		return o.refusal
	}
	o.reports = append(o.reports, Report{ref.Resource.Resource, ref.Name, uid, string(body)})
	return nil
}

// Reports are those of an object so far, the oldest first; of all objects where name is "".
func (o *Outbox) Reports(name string) []Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(o.reports), func(r Report) bool { return name != "" && r.Name != name })
}
