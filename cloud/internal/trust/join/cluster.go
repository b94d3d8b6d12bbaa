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

// clusterVersion is kube-apiserver's version, as it was when it was last asked. Devices that ask
// cost nothing there.
type clusterVersion struct{ known atomic.Pointer[string] }

// follow asks now and then until ctx ends. While kube-apiserver can't be asked, what was
// known stays.
func (v *clusterVersion) follow(ctx context.Context, client discovery.ServerVersionInterface) {
	ticker := time.NewTicker(clusterAge)
	defer ticker.Stop()
	for {
		if info, err := client.ServerVersion(); err != nil {
			klog.FromContext(ctx).Info("The version of kube-apiserver could not be read", "err", err)
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
