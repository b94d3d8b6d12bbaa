package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// OperationsPath is where the running edgecore is asked, on its unix socket, for operations: GET
// lists them (a drain.State), POST with an OperationRequest asks for one, POST below it to
// NAME/cancel or NAME/force (with a Force) changes one.
const OperationsPath = "/skerry/v1/operations"

// OperationRequest is the request of `edgecore operation reboot` and the like.
type OperationRequest struct {
	Name            string                     `json:"name,omitempty"` // "": one is made up
	Operation       v1alpha1.OperationType     `json:"operation"`
	Image           string                     `json:"image,omitempty"`
	Upgrade         *v1alpha1.UpgradeSpec      `json:"upgrade,omitempty"` // to a version of the bundle that ReadBundle has put onto the device
	Drain           v1alpha1.DrainPolicy       `json:"drain,omitempty"`
	DrainTimeout    time.Duration              `json:"drainTimeoutNanoseconds,omitempty"`
	WhenUnreachable v1alpha1.UnreachablePolicy `json:"whenUnreachable,omitempty"`
}

// Force is the request of `edgecore operation force`: the drain counts as complete, or as switched
// off.
type Force struct {
	Off bool `json:"off"`
}

// maxOrder bounds requests to these paths, in bytes.
const maxOrder = 8 << 10

func (a *App) handleOperations(mux *http.ServeMux) {
	handle := func(pattern string, do func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if a.agents.drain == nil {
				http.Error(w, "modules.drain is switched off on this device: it carries out no operations", http.StatusConflict)
				return
			}
			if err := do(w, r); err != nil {
				http.Error(w, err.Error(), codeOf(err))
			}
		})
	}
	handle("GET "+OperationsPath, func(w http.ResponseWriter, _ *http.Request) error {
		return answer(w, http.StatusOK, a.agents.drain.Status())
	})
	handle("POST "+OperationsPath, func(w http.ResponseWriter, r *http.Request) error {
		var q OperationRequest
		if err := order(w, r, &q); err != nil {
			return err
		}
		o := q.operation(a.node)
		if err := a.agents.drain.Request(r.Context(), o); err != nil {
			return err
		}
		return answer(w, http.StatusCreated, o)
	})
	handle("POST "+OperationsPath+"/{name}/cancel", func(w http.ResponseWriter, r *http.Request) error {
		if err := a.agents.drain.Cancel(r.Context(), r.PathValue("name")); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	handle("POST "+OperationsPath+"/{name}/force", func(w http.ResponseWriter, r *http.Request) error {
		var f Force
		if err := order(w, r, &f); err != nil {
			return err
		}
		if err := a.agents.drain.Force(r.Context(), r.PathValue("name"), f.Off); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// operation returns the request as an operation of the agent. Its name must be unique in the
// cluster, since the cloud shows it too.
func (q OperationRequest) operation(node string) drain.Operation {
	o := drain.Operation{
		Name: q.Name, Request: rand.String(16), RequestedBy: v1alpha1.RequestedOnDevice,
		Spec: v1alpha1.NodeOperationSpec{NodeName: node, Operation: q.Operation, Image: q.Image, Upgrade: q.Upgrade, Drain: q.Drain, WhenUnreachable: q.WhenUnreachable},
	}
	if q.DrainTimeout != 0 {
		o.Spec.DrainTimeout = &metav1.Duration{Duration: q.DrainTimeout}
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("%s-%s-%s", node, strings.ToLower(string(q.Operation)), rand.String(5))
	}
	return o
}

var errOrder = errors.New("the order can't be read")

func order(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errOrder, err)
	}
	return nil
}

func answer(w http.ResponseWriter, code int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client is gone
	return nil
}

func codeOf(err error) int {
	switch {
	case errors.Is(err, drain.ErrInvalid), errors.Is(err, errOrder):
		return http.StatusBadRequest
	case errors.Is(err, drain.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, drain.ErrExists), errors.Is(err, drain.ErrOver):
		return http.StatusConflict
	case errors.Is(err, drain.ErrFull):
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}
