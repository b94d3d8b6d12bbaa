// Package version names the versions of Skerry and of the Kubernetes that it embeds.
//
// It owns nothing else. The linker sets Skerry's version (-ldflags -X); the values never change at run time.
package version

import componentversion "k8s.io/component-base/version"

var version = "v0.0.0-dev" // set by the linker

// Skerry is the version of this build.
func Skerry() string { return version }

// Kubernetes is the version of the kubelet and the client libraries in this build. The linker sets it in k8s.io/component-base/version; without
// that a kubelet would report v0.0.0-master.
func Kubernetes() string { return componentversion.Get().GitVersion }
