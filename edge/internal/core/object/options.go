package object

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// DecodeOptions reads the body of a deletion, in either encoding.
func DecodeOptions(body []byte, into *metav1.DeleteOptions) error {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"} // for JSON without a kind
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &kind, into)
	if err != nil {
		return err
	}
	if o, ok := obj.(*metav1.DeleteOptions); ok && o != into {
		*into = *o
	}
	return nil
}

// EncodeLike encodes obj in the encoding that body has.
func EncodeLike(body []byte, obj runtime.Object) ([]byte, error) {
	encode := JSON
	if IsProtobuf(body) {
		encode = Encode
	}
	out, err := encode(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return out, nil
}
