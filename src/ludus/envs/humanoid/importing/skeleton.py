"""The humanoid, onto which motions are brought: its bodies, and its joints by the axes of their hinges."""

BODIES = (
    "pelvis", "torso", "head", "right_upper_arm", "right_lower_arm", "right_hand", "left_upper_arm",
    "left_lower_arm", "left_hand", "right_thigh", "right_shin", "right_foot", "left_thigh", "left_shin",
    "left_foot",
)  # fmt: skip
# In the order in which they turn: outer first. Real clips stay away from gimbal lock.
HINGES = {
    "abdomen": "yxz", "neck": "yxz", "right_shoulder": "xyz", "right_elbow": "z", "left_shoulder": "xyz",
    "left_elbow": "z", "right_hip": "yxz", "right_knee": "y", "right_ankle": "yxz", "left_hip": "yxz",
    "left_knee": "y", "left_ankle": "yxz",
}  # fmt: skip
JOINTS = tuple(f"{joint}_{axis}" if len(order) > 1 else joint for joint, order in HINGES.items() for axis in order)
