package marks

import (
	"fmt"
	"strings"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
)

const (
	// entryBytes bounds the entries of a report; `edgecore status` lists all. cloudcore takes
	// reports of 16 KiB.
	entryBytes = 8 << 10
	// messageBytes bounds its message.
	messageBytes = 1 << 10
)

// entry is this node's entry in the status of a ServiceCollection.
func entry(node string, c *Collected, r mangle.Rules, failed error) v1alpha1.ServiceCollectionNode {
	e := v1alpha1.ServiceCollectionNode{
		Name: node, Reason: v1alpha1.CollectionApplied,
		Services: int32(len(c.Services)), Ingresses: int32(len(c.Ingresses)), LeftOut: int32(c.LeftOut), Rules: int32(r.Len()),
	}
	switch {
	case failed != nil:
		e.Reason, e.Message = v1alpha1.CollectionFailed, failed.Error()
	case c.LeftOut > 0:
		e.Reason = v1alpha1.CollectionLeftOut
		e.Message = fmt.Sprintf("a node collects %d entries: %d of the newest objects are left out", MaxEntries, c.LeftOut)
	case len(c.Problems) > 0:
		e.Reason, e.Message = v1alpha1.CollectionInvalid, strings.Join(c.Problems, "; ")
	}
	e.Message = cut(e.Message, messageBytes)
	size := 0
	for _, line := range c.Entries() {
		if size += len(line); size > entryBytes {
			break
		}
		e.Entries = append(e.Entries, line)
	}
	return e
}

// report sets this node's entry in each ServiceCollection.
func report(r *agent.Run, collections *agent.Objects[*v1alpha1.ServiceCollection], e v1alpha1.ServiceCollectionNode) error {
	ref := func(name string) object.Ref {
		return object.Ref{Resource: v1alpha1.Resource(v1alpha1.ServiceCollections), Name: name}
	}
	for key := range collections.Changed() {
		if _, there := collections.Get(key); !there {
			r.Reports.Drop(ref(key)) // an object that is gone has no status
		}
	}
	for _, o := range collections.List() {
		if err := r.Reports.Set(ref(o.Name), o.UID, e); err != nil {
			return err
		}
	}
	return nil
}
