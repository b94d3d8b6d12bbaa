package object

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Corrector changes how objects of one resource are presented on the device. Its results are
// never stored, never sent to the cloud, and not in the digests that the cloud compares: those are
// of the delivered objects.
type Corrector interface {
	// Corrects reports whether objects of the resource are corrected.
	Corrects(resource schema.GroupVersionResource) bool
	// Correct returns the visible replacement of o.Raw, in the same encoding; o.Raw itself if it
	// needs no correction. decoded is o.Raw's object if the caller has it, else nil; it must not be
	// changed. metamanager's core calls it for each version of an object, and when it is asked to
	// (Manager.Recorrect). It must be quick and must not call metamanager.
	Correct(o Object, decoded runtime.Object) []byte
}
