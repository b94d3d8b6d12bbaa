package object

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Corrector changes how objects of one resource are shown on the device. What it makes of them
// is never stored, never sent up, and not in the digests that the cloud compares: those are of
// what was delivered.
type Corrector interface {
	// Corrects reports whether objects of the resource are corrected.
	Corrects(resource schema.GroupVersionResource) bool
	// Correct returns what is shown in the place of o.Raw, in the same encoding; o.Raw itself where
	// nothing is to be corrected. decoded is o.Raw's object where the caller has it, else nil; it
	// stays as it is. metamanager's core calls it for each version of an object, and when it is
	// asked to (Manager.Recorrect). It must be quick and must not call metamanager.
	Correct(o Object, decoded runtime.Object) []byte
}
