package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// apiserver answers with a Lease of that epoch; 0: without a Lease.
type apiserver uint64

func (a apiserver) Do(_ context.Context, as kube.Identity, r kube.Request) (*kube.Response, error) {
	if as.Node != "edge1" || r.Method != http.MethodGet || r.Query != "" {
		return nil, errors.New("the Lease is read as the node, and from no cache")
	}
	if a == 0 {
		return &kube.Response{Code: http.StatusNotFound}, nil
	}
	body, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fence.EpochAnnotation: strconv.FormatUint(uint64(a), 10)}}})
	return &kube.Response{Code: http.StatusOK, Body: body}, err
}

type session uint64

func (session) Node() types.NodeName { return "edge1" }
func (s session) Epoch() uint64      { return uint64(s) }

// Invariant 5 of docs/dev/ARCHITECTURE.md: an older session is told that a newer one has the Lease.
func TestClaims_23_OlderSessionIsFenced(t *testing.T) {
	check := func(lease apiserver, ours session) error { return fence.Check(t.Context(), lease, ours) }
	if err := check(7, 7); err != nil {
		t.Errorf("the newest: %v", err)
	}
	if newer, ok := errors.AsType[*fence.Superseded](check(8, 7)); !ok || newer.Epoch != 8 || newer.Ours != 7 {
		t.Errorf("an older session: %v", check(8, 7))
	}
	for _, lease := range []apiserver{0, 6} {
		if err := check(lease, 7); !errors.Is(err, fence.ErrNotHeld) {
			t.Errorf("a Lease of epoch %d: %v", lease, err)
		}
	}
}
