package meta

import (
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Write is a write as a client of the edge API sent it.
type Write struct {
	Verb        string // create, update, patch, delete, deletecollection: as in apiserver's RequestInfo
	Ref         object.Ref
	Subresource string
	PatchType   types.PatchType
	ContentType string // of Body
	Accept      string // for what passes through
	Body        []byte // the object, the patch, or DeleteOptions, as it came
	Path        string // of the URL, escaped; with Query, for what passes through
	Query       url.Values
	UID         types.UID // precondition, where it is known; else it is taken from Body
	// FieldManager is known to kube-apiserver only; the objects held carry no managedFields.
	FieldManager string
	Caller       Caller
}

// Result is what became of a Write.
type Result struct {
	Code     int
	Object   *object.Object       // of a write that was applied here
	Status   *metav1.Status       // of a deletion that was applied here
	Response *topicpb.APIResponse // of a write that passed through, whatever its code
}
