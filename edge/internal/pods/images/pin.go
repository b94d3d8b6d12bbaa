package images

import (
	"github.com/distribution/reference"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pin marks as pinned the images that are wanted, and all where known is false. Images pinned by
// the runtime stay pinned.
func Pin(images []*runtimev1.Image, wanted []string, known bool) {
	keep := make(map[string]bool, len(wanted))
	for _, name := range wanted {
		if name != "" {
			keep[name], keep[normal(name)] = true, true // an ID looks like a name with a tag
		}
	}
	for _, i := range images {
		if !known || keep[i.Id] || has(keep, i.RepoTags) || has(keep, i.RepoDigests) {
			i.Pinned = true
		}
	}
}

// listed reports whether an image of that name is among images.
func listed(images []*runtimev1.Image, name string) bool {
	want := map[string]bool{normal(name): true}
	for _, i := range images {
		if has(want, i.RepoTags) || has(want, i.RepoDigests) {
			return true
		}
	}
	return false
}

func has(keep map[string]bool, names []string) bool {
	for _, name := range names {
		if keep[normal(name)] {
			return true
		}
	}
	return false
}

// normal returns the full name of an image, as runtimes list it: "nginx" gets a host, a folder and
// the tag "latest". If a name has a tag and a digest, the digest counts (containerd lists the image
// under both). Other strings, such as an image's ID, are returned unchanged.
func normal(name string) string {
	n, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return n.String()
}
