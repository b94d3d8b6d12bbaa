package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	cordonTries  = 10
	maxBlocked   = 100
	maxMessage   = 512 // of the API's message on one pod
	maxComebacks = 2   // a pod that was recreated as often in one attempt is pinned
)

// Worker carries out the core's decisions, with the node's own identity. Its methods block, and end
// with ctx.
type Worker struct {
	node       string
	client     kubernetes.Interface
	retryDelay time.Duration
	cordonWait time.Duration
}

// WorkerConfig configures a Worker. Zero durations have the defaults given here.
type WorkerConfig struct {
	NodeName    string
	API         *rest.Config  // kube-apiserver as the node; failed requests are answered by a 503 or a network error
	EvictDelay  time.Duration // between two evictions of a pod that a PodDisruptionBudget holds; 5 s
	CordonDelay time.Duration // between two tries to cordon; 5 s
}

// NewWorker makes a Worker. It sends no request.
func NewWorker(c WorkerConfig) (*Worker, error) {
	api := rest.CopyConfig(c.API)
	api.Wrap(func(next http.RoundTripper) http.RoundTripper { return responseObserver{next} })
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("a client of the API: %w", err)
	}
	or := func(d, standard time.Duration) time.Duration {
		if d == 0 {
			return standard
		}
		return d
	}
	return &Worker{
		node: c.NodeName, client: client,
		retryDelay: or(c.EvictDelay, 5*time.Second), cordonWait: or(c.CordonDelay, 5*time.Second),
	}, nil
}

// Cordon makes the node unschedulable and marks the cordon as ours. An existing cordon keeps its
// owner.
func (w *Worker) Cordon(ctx context.Context) Result {
	return w.change(ctx, func(n *corev1.Node) bool {
		if n.Spec.Unschedulable {
			return false
		}
		n.Spec.Unschedulable = true
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[v1alpha1.CordonAnnotation] = owner
		return true
	})
}

// Uncordon removes our cordon, and no other. Of one that became another's, it removes only our
// annotation.
func (w *Worker) Uncordon(ctx context.Context) Result {
	res := w.change(ctx, func(n *corev1.Node) bool {
		if n.Annotations[v1alpha1.CordonAnnotation] != owner {
			return false
		}
		if ours(n) {
			n.Spec.Unschedulable = false
		}
		delete(n.Annotations, v1alpha1.CordonAnnotation)
		return true
	})
	if apierrors.IsNotFound(res.Err) {
		return Result{} // the Node was deleted, and its cordon with it
	}
	return res
}

// change reads, changes and writes the node until it worked; a conflict re-reads. An API without an
// answer ends it: the caller retries.
func (w *Worker) change(ctx context.Context, change func(*corev1.Node) bool) Result {
	var last error
	for try := range cordonTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return failed(context.Cause(ctx))
			case <-time.After(w.cordonWait):
			}
		}
		node, err := w.client.CoreV1().Nodes().Get(ctx, w.node, metav1.GetOptions{})
		if err == nil {
			if !change(node) {
				return Result{}
			}
			_, err = w.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		switch {
		case err == nil:
			return Result{}
		case noAnswer(err) || ctx.Err() != nil:
			return failed(err)
		}
		klog.FromContext(ctx).Info("Failed to patch the Node", "nodedrain-step", "cordon-failure", "try", try+1, "of", cordonTries, "err", plain(err))
		last = err
	}
	return failed(last)
}

func failed(err error) Result { return Result{Err: plain(err), Interrupted: noAnswer(err)} }

// plain is an error without the address that net/http puts in front: that of kube-apiserver through
// the link is made up (Through), and meaningless to the user.
func plain(err error) error {
	var where *url.Error
	if errors.As(err, &where) {
		return where.Err
	}
	return err
}

// noAnswer reports whether an error is not about the node: there is no link, or kube-apiserver is
// unreachable.
func noAnswer(err error) bool {
	if err == nil {
		return false
	}
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || isGateway(err) {
		return true
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isGateway(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (status.Status().Code == http.StatusBadGateway || status.Status().Code == http.StatusGatewayTimeout)
}
