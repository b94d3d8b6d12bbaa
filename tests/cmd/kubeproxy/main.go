// Command kubeproxy is upstream's kube-proxy alone, in the version of the rest: it runs on a node
// together with edgecore in tests.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as upstream's kube-proxy
	_ "k8s.io/component-base/metrics/prometheus/version"  // as upstream's kube-proxy
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() { os.Exit(cli.Run(app.NewProxyCommand())) }
