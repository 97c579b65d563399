package watch

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reporter writes Kubernetes Events; equal ones are counted, not repeated. It never waits for the API server: while that is
// away, or when there are too many of one object, events are dropped.
type Reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
}

// NewReporter makes a reporter that writes in the background.
func NewReporter(client kubernetes.Interface) *Reporter {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Reporter{b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: "flowkeep-netmaster"}), b}
}

// Close ends the background.
func (r *Reporter) Close() { r.broadcaster.Shutdown() }

var apiVersions = map[string]string{"NetworkPolicy": "networking.k8s.io/v1", "Pod": "v1", "Node": "v1"}

// longestMessage is what the API server takes, in bytes.
const longestMessage = 1024

// Warn writes a warning about an object.
func (r *Reporter) Warn(kind, namespace, name, uid, reason, message string) {
	r.write(corev1.EventTypeWarning, &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name, UID: types.UID(uid)}, reason, message)
}

// Note writes that something about an object is well.
func (r *Reporter) Note(kind, namespace, name, uid, reason, message string) {
	r.write(corev1.EventTypeNormal, &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name, UID: types.UID(uid)}, reason, message)
}

func (r *Reporter) write(level string, about *corev1.ObjectReference, reason, message string) {
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage-3], "") + "…"
	}
	about.APIVersion = apiVersions[about.Kind]
	r.recorder.Event(about, level, reason, message)
}
