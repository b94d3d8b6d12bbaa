package relay

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// metadataOnly asks kube-apiserver to answer a write with the metadata of the object alone: the
// rest of the answer is not read. As protobuf, kube-apiserver and cloudcore spend the least on it.
const metadataOnly = kube.Protobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// pathTo is the URL path of a resource, escaped, or an error for names that can't be in one.
func pathTo(r schema.GroupVersionResource, namespace, name, subresource string) (string, error) {
	for _, segment := range []string{r.Group, r.Version, r.Resource, namespace, name, subresource} {
		if reasons := content.IsPathSegmentName(segment); segment != "" && len(reasons) > 0 {
			return "", apierrors.NewBadRequest(fmt.Sprintf("%q can't be part of a path: %s", segment, reasons[0]))
		}
	}
	p := "/apis/" + url.PathEscape(r.Group)
	if r.Group == "" {
		p = "/api"
	}
	p += "/" + url.PathEscape(r.Version)
	if namespace != "" {
		p += "/namespaces/" + url.PathEscape(namespace)
	}
	p += "/" + url.PathEscape(r.Resource)
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	if subresource != "" {
		p += "/" + url.PathEscape(subresource)
	}
	return p, nil
}

func resourceOf(w *topicpb.Write) schema.GroupVersionResource {
	r := w.GetResource()
	return schema.GroupVersionResource{Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource()}
}

// key identifies an object: a pod's status and its deletion are one object's.
func key(w *topicpb.Write) string {
	r := w.GetResource()
	return r.GetGroup() + "/" + r.GetResource() + "/" + w.GetNamespace() + "/" + w.GetName()
}

// fieldsOf reads the fields of a JSON object. null is not an object.
func fieldsOf(b []byte, what string) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the %s is no JSON object: %v", what, err))
	}
	if fields == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the %s is no JSON object", what))
	}
	return fields, nil
}

// withPreconditions puts a uid into a patch, so that it can't hit another object of the same name,
// and the resourceVersion on top of which alone it may be laid: kube-apiserver refuses a patch that
// would change either. Empty ones stay out.
func withPreconditions(patch []byte, uid, version string) ([]byte, error) {
	if uid == "" && version == "" {
		return patch, nil
	}
	p, err := fieldsOf(patch, "patch")
	if err != nil {
		return nil, err
	}
	metadata := map[string]json.RawMessage{}
	if raw, ok := p["metadata"]; ok {
		if metadata, err = fieldsOf(raw, "patch's metadata"); err != nil {
			return nil, err
		}
	}
	for field, value := range map[string]string{"uid": uid, "resourceVersion": version} {
		if value == "" {
			continue
		}
		if metadata[field], err = json.Marshal(value); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if p["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return json.Marshal(p)
}

// badWrite is the Status for a write that its topic does not have.
func badWrite(w *topicpb.Write, want string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s of %s %s/%s is no write of this topic: %s",
		w.GetVerb(), w.GetResource().GetResource(), w.GetNamespace(), w.GetName(), want))
}

// isPatch reports whether t is a patch type that a write may have. JSON patches can't be merged
// while they wait, so the edge sends none of them.
func isPatch(t string) bool {
	return t == string(types.StrategicMergePatchType) || t == string(types.MergePatchType)
}

// otherUID reports whether a conflict means that the object of that name is another one.
func otherUID(err error) bool {
	if !apierrors.IsConflict(err) {
		return false
	}
	// kube-apiserver's texts for a failed precondition of a deletion, of an update, and of a patch
	// with a uid; and our own.
	for _, text := range []string{"UID in the precondition", "UID in precondition", "uid mismatch"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
