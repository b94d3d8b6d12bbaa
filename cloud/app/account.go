package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/version"
)

// restConfig is the way to kube-apiserver by a kubeconfig; "" means the account of the pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("kubeconfig is not set, and this is no pod: %w", err)
		}
	} else if cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.UserAgent = "cloudcore/" + version.Skerry()
	return cfg, nil
}

// instanceName identifies a replica, in logs and in Leases.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "cloudcore"
	}
	return host + "-" + rand.String(5)
}

// startTimeout bounds each conversation with kube-apiserver before cloudcore serves.
const startTimeout = 2 * time.Minute

// waitFor tries until it works, a refusal that won't pass comes, or ctx ends: at a site's power-up
// kube-apiserver may be later than cloudcore. A try that is not answered is given up: a server that
// hangs must not hold one that would answer.
func waitFor[T any](ctx context.Context, what string, try func(context.Context) (T, error)) (T, error) {
	const tryTimeout = 5 * time.Second
	backoff := time.Second
	for {
		once, cancel := context.WithTimeout(ctx, tryTimeout)
		v, err := try(once)
		cancel()
		if err == nil {
			return v, nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			return v, fmt.Errorf("%s: %w (are the manifests applied? `cloudcore install` prints them)", what, err)
		}
		klog.FromContext(ctx).Info("Waiting for kube-apiserver", "doing", what, "err", err, "retryIn", backoff)
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("%s: %w", what, errors.Join(err, context.Cause(ctx)))
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 10*time.Second)
	}
}
