package kube

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// parseVersion reads a resourceVersion as a number, 0 if it is not a number. kube-apiserver's are
// numbers that grow (KEP-5504).
func parseVersion(version string) uint64 {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// versionOf returns an object's resourceVersion as a number, 0 if it is not a number.
func versionOf(o runtime.Object) uint64 {
	m, err := metaOf(o)
	if err != nil {
		return 0
	}
	return parseVersion(m.GetResourceVersion())
}

func metaOf(o runtime.Object) (metav1.Object, error) {
	a, ok := o.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", o)
	}
	return a.GetObjectMeta(), nil
}

func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}
