// Command plainkubelet is upstream's kubelet alone: the reference that edgecore is compared with,
// in the same version and with the same build flags.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as upstream's kubelet
	_ "k8s.io/component-base/metrics/prometheus/version"  // as upstream's kubelet
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }
