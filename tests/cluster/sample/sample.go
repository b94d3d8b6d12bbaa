// Package sample checks the sample application of a trial (manifests/examples/sample): on each edge
// a pod that serves machines on the LAN, and a store, which that pod finds by name on any edge.
//
// It is stateless. Its functions may be called from any goroutine.
package sample

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// Namespace is the application's.
const Namespace = "sample"

// port is the NodePort at which each edge serves its own pod.
const port = "30080"

// Missing returns "" or the part of the application that is not ready on a node, from all its pods
// as the cloud knows them. runs reports whether the node has a container that runs: the cloud's
// state of a node that has just booted may be older than that.
func Missing(pods []corev1.Pod, node string, edge bool, runs func(id string) bool) string {
	apps := map[string]string{"sample": "is not scheduled yet"}
	if edge {
		apps["store"] = "is not scheduled yet" // ordinary nodes don't have it
	}
	for _, p := range pods {
		if app := p.Labels["app"]; p.Spec.NodeName == node && apps[app] != "" {
			switch {
			case !Ready(&p):
				apps[app] = "is " + string(p.Status.Phase)
			case !containersRun(&p, runs):
				apps[app] = "does not run on the node, which has not reported that yet"
			default:
				apps[app] = ""
			}
		}
	}
	for app, why := range apps {
		if why != "" {
			return "its pod of the application " + app + " " + why
		}
	}
	return ""
}

func containersRun(p *corev1.Pod, runs func(id string) bool) bool {
	for _, c := range p.Status.ContainerStatuses {
		if _, id, found := strings.Cut(c.ContainerID, "://"); !found || !runs(id) {
			return false
		}
	}
	return true
}

// Ready reports whether a pod is, and stays.
func Ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// Store returns the answer of the application on the edge with that address when a host asks for
// its store; "no answer" without an answer.
func Store(ctx context.Context, from host.Host, edge netip.Addr) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: from.Dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(edge.String(), port)+"/", http.NoBody)
	if err != nil {
		return err.Error()
	}
	res, err := client.Do(req)
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	page, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	_, store, found := strings.Cut(string(page), "\nstore: ")
	if err != nil || !found {
		return "no answer"
	}
	return strings.TrimSpace(store)
}
