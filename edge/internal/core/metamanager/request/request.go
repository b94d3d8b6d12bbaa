// Package request has the requests of edge API clients to metamanager and the results: reads,
// watches and writes, with their caller. It is stateless; its values are not changed once they were
// passed on.
package request

import (
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// ErrPassThrough is returned by a Get or a List whose objects are not cached but available from the
// cloud. It is only returned while there is a link.
var ErrPassThrough = errors.New("not held here: ask the cloud")

// Caller identifies the client of the edge API. The zero value is the device's root, which acts as
// the node.
type Caller struct {
	Kubelet     bool
	BearerToken string // of a ServiceAccount: proxied requests are authorized as that account
}

// ListOptions has the caller and the options of a list.
type ListOptions struct {
	// FromReflector: any version will do (resourceVersion=0), as reflectors ask: the set is worth
	// holding. The list waits for it.
	FromReflector bool
	// Held asks for the cached objects of the selection, regardless of their sets; 503 if no set of
	// the resource was ever delivered. It creates no interest: it is for a user who inspects the
	// device.
	Held   bool
	Caller Caller
}

// WatchOptions sets the start of a watch.
type WatchOptions struct {
	// From is the version after which changes are requested. 0: any; the watch begins with all
	// cached objects, each as Added.
	From uint64
	// InitialEvents begins with all cached objects, regardless of From, and ends them with a
	// bookmark (Event.InitialEnd).
	InitialEvents bool
	// Held: see ListOptions.
	Held   bool
	Caller Caller
}

// Event is one thing that a watch sees.
type Event struct {
	Type watch.EventType
	// Object is the state after the change; of Deleted: the last state, with the version of its
	// deletion. Its bytes are shared: don't change them.
	Object     object.Object
	Version    uint64         // of the change; of a Bookmark: of the events so far
	InitialEnd bool           // the Bookmark that ends the initial events
	Status     *metav1.Status // of Error; the last event
}

// Watch is a watch that was opened. The channel is closed when it has ended.
type Watch interface {
	Events() <-chan Event
	Stop()
}

// Write is a write as a client of the edge API sent it.
type Write struct {
	Verb        string // create, update, patch, delete, deletecollection: as in apiserver's RequestInfo
	Ref         object.Ref
	Subresource string
	PatchType   types.PatchType
	ContentType string // of Body
	Accept      string // for proxied requests
	Body        []byte // the object, the patch, or DeleteOptions, unchanged
	Path        string // of the URL, escaped; with Query, for proxied requests
	Query       url.Values
	UID         types.UID // precondition, where it is known; else it is taken from Body
	// FieldManager is known to kube-apiserver only; the objects held carry no managedFields.
	FieldManager string
	Caller       Caller
}

// Result is the answer to a Write.
type Result struct {
	Code     int
	Object   *object.Object       // of a write that was applied here
	Status   *metav1.Status       // of a deletion that was applied here
	Response *topicpb.APIResponse // of a write that passed through, whatever its code
}
