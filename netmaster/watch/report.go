package watch

import (
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reporter writes Kubernetes Events and counts repeated ones. It does not block: it drops Events while the API
// server is unavailable, or if one object has too many.
type Reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
}

// NewReporter returns a reporter that writes in the background.
func NewReporter(client kubernetes.Interface) *Reporter {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Reporter{b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: wellknown.NetmasterEvents}), b}
}

// Close stops writing.
func (r *Reporter) Close() { r.broadcaster.Shutdown() }

// maxMessage is the API server's limit, in bytes.
const maxMessage = 1024

// Emit writes an Event with the reason about an object of the reason's kind.
func (r *Reporter) Emit(reason wellknown.EventReason, namespace, name, uid, message string) {
	event := wellknown.EventOf(reason)
	if event == nil {
		return // excluded by a test
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "…"
	}
	about := &corev1.ObjectReference{
		APIVersion: event.APIVersion,
		Kind:       event.Kind,
		Namespace:  namespace,
		Name:       name,
		UID:        types.UID(uid),
	}
	r.recorder.Event(about, event.Type(), string(reason), message)
}
