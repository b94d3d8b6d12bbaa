package join

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// clusterAge is how old the known version of kube-apiserver becomes: a cluster is upgraded while
// cloudcore runs.
const clusterAge = time.Minute

// clusterVersion caches kube-apiserver's version. Requests of devices cause no request there.
type clusterVersion struct{ known atomic.Pointer[string] }

// follow asks now and then until ctx ends. While kube-apiserver can't be asked, the last version
// stays.
func (v *clusterVersion) follow(ctx context.Context, client discovery.ServerVersionInterface) {
	ticker := time.NewTicker(clusterAge)
	defer ticker.Stop()
	for {
		if info, err := client.ServerVersion(); err != nil {
			klog.FromContext(ctx).Info("Failed to read the version of kube-apiserver", "err", err)
		} else {
			v.known.Store(&info.GitVersion)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// get is the version, or "" where it is not known yet.
func (v *clusterVersion) get() string {
	if known := v.known.Load(); known != nil {
		return *known
	}
	return ""
}
