package publish

import (
	"testing"
	"unsafe"
)

// Each idle node has some dozen of both, and Go's allocator has no sizes between 128 and 144, and
// between 176 and 192 bytes (internal/runtime/gc/sizeclasses.go).
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(interest{}); n > 128 {
		t.Errorf("an interest has %d bytes", n)
	}
	if n := unsafe.Sizeof(resourceSync{}); n > 176 {
		t.Errorf("a resource has %d bytes", n)
	}
}
