// Package version names the versions of Skerry and of the Kubernetes that it embeds.
//
// It owns these values alone. The linker sets Skerry's version (-ldflags -X); the values never
// change at run time.
package version

import componentversion "k8s.io/component-base/version"

var (
	version  = "v0.0.0-dev" // set by the linker
	registry = ""           // set by the linker, in releases: where their images are
)

// Skerry is the version of this build.
func Skerry() string { return version }

// Kubernetes is the version of the kubelet and the client libraries in this build. The linker sets
// it in k8s.io/component-base/version; without that a kubelet would report v0.0.0-master.
func Kubernetes() string { return componentversion.Get().GitVersion }

// Image is the image of a program, such as cloudcore, of exactly this build; "" where the build is
// no release, since no registry has one then.
func Image(program string) string {
	if registry == "" {
		return ""
	}
	return registry + "/" + program + ":" + version
}
